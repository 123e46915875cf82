"""Adapter of rule tokenize_prompts: a source of prompts to token ids."""

from pathlib import Path

from tokenfill.adapter import one_sentence

with one_sentence(snakemake.log[0]):
    from tokenfill.prompts.run import run

    run(
        settings=Path(snakemake.input.settings),
        out=Path(snakemake.output.prompts),
        earlier=[Path(path) for path in snakemake.input.get("earlier", [])],
        log=Path(snakemake.log[0]),
    )
