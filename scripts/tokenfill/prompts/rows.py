"""What a source and a row of it are, before anything is read."""

from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """One row as it was found. `value` is None where `problem` says why it could not be read."""

    file: str
    line: int | None
    value: object
    problem: str | None = None


class Source(NamedTuple):
    """What `source` names: local files, or a dataset for the `datasets` library."""

    files: list[Path]
    dataset: str | None = None
    config: str | None = None
    split: str | None = None
    revision: str | None = None


def without_nulls(value: object) -> object:
    """Drops null fields at every depth: a typed table gives each struct the fields of all the others."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
