"""Reading `prompts.parquet` a row group at a time, so that memory does not grow with the number of prompts."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenfill.errors import UserError

_NAMES = ["id", "prompt_hash", "turn"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One tokenized prompt. `input_ids`: what is sent, as a list of ints."""

    id: str
    prompt_hash: str
    turn: int
    input_ids: list[int]


class PromptTable:
    """The prompts of one dataset, in the order in which they are asked.

    `facts` is what `tokenize_prompts` noted: content digests, vocabulary size, stop token ids.
    Raises UserError where the file is none of ours.
    """

    def __init__(self, path: Path):
        try:
            self._file = pq.ParquetFile(path, memory_map=False, pre_buffer=False)
            self.facts = json.loads(self._file.schema_arrow.metadata[b"tokenfill"])
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} is no table of prompts that tokenize_prompts wrote ({error}); delete it and run again."
            ) from error

    def __len__(self) -> int:
        return self._file.metadata.num_rows

    def prompts(self, is_wanted: Callable[[str, str, int], bool]) -> Iterator[Prompt]:
        """The prompts that are wanted by (id, prompt_hash, turn), in order."""
        for group in range(self._file.num_row_groups):
            names = enumerate(_names(self._file.read_row_group(group, _NAMES)))
            yield from self._prompts(group, {row: name for row, name in names if is_wanted(*name)})

    def with_hashes(self, prompt_hashes: Collection[str]) -> Iterator[Prompt]:
        """The prompts whose hash is one of these, in order."""
        for group, rows in self._groups_with(prompt_hashes):
            names = _names(self._file.read_row_group(group, _NAMES).take(rows))
            yield from self._prompts(group, dict(zip(rows, names, strict=True)))

    def keys_among(self, prompt_hashes: Collection[str]) -> Iterator[tuple[str, str, int]]:
        """(id, prompt_hash, turn) of the prompts whose hash is one of these."""
        for group, rows in self._groups_with(prompt_hashes):
            yield from _names(self._file.read_row_group(group, _NAMES).take(rows))

    def _groups_with(self, prompt_hashes: Collection[str]) -> Iterator[tuple[int, list[int]]]:
        """(row group, its rows) wherever a hash is one of these."""
        wanted = pa.array(sorted(prompt_hashes), pa.string())
        for group in range(self._file.num_row_groups if prompt_hashes else 0):
            hashes = self._file.read_row_group(group, ["prompt_hash"])["prompt_hash"]
            rows = pc.indices_nonzero(pc.is_in(hashes, wanted)).to_pylist()
            if rows:
                yield group, rows

    def _prompts(self, group: int, names: dict[int, tuple[str, str, int]]) -> Iterator[Prompt]:
        """These rows of a group. The ids are read only where there are any."""
        if names:
            column = self._file.read_row_group(group, ["input_ids"])["input_ids"]
            for row, name in names.items():
                yield Prompt(*name, column[row].values.to_numpy().tolist())


def _names(rows: pa.Table) -> list[tuple[str, str, int]]:
    return list(zip(*(rows[name].to_pylist() for name in _NAMES), strict=True))
