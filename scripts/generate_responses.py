"""Adapter of rule generate_responses: fill one dataset to its budget."""

from pathlib import Path

from tokenfill.adapter import one_sentence

with one_sentence(snakemake.log[0]):
    from tokenfill.responses.worker import fill

    paths = {name: Path(snakemake.input[name]) for name in ("settings", "prompts")}
    complete = Path(snakemake.output.complete)
    engine = complete.parents[1] / "engine.json"
    fill(**paths, complete=complete, engine=engine, **snakemake.params)
