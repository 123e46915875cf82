"""Adapter of rule fetch_embedded_model: the shipped config's model into one folder."""

from pathlib import Path

from tokenfill.adapter import one_sentence

with one_sentence(snakemake.log[0]):
    from tokenfill.embedded.fetch import fetch

    fetch(Path(snakemake.output.weights).parent)
