"""Adapter of rule build_records: join prompts and answers into training records."""

from pathlib import Path

from tokenfill.adapter import one_sentence

with one_sentence(snakemake.log[0]):
    from tokenfill.records.build import build

    paths = {name: Path(snakemake.input[name]) for name in ("settings", "prompts", "complete")}
    build(**paths, records=Path(snakemake.output.records))
