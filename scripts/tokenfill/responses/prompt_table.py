"""Reading `prompts.parquet` a row group at a time, so that memory does not grow with the number of prompts."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenfill.errors import UserError

_COLUMNS = ["id", "prompt_hash", "turn", "input_ids"]


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
            self._file = pq.ParquetFile(path, memory_map=True)
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
            yield from _prompts(self._file.read_row_group(group, _COLUMNS), is_wanted)

    def keys_among(self, prompt_hashes: Collection[str]) -> set[tuple[str, str, int]]:
        """(id, prompt_hash, turn) of the prompts whose hash is one of these."""
        if not prompt_hashes:
            return set()
        wanted = pa.array(sorted(prompt_hashes))
        found = set()
        for group in range(self._file.num_row_groups):
            rows = self._file.read_row_group(group, ["id", "prompt_hash", "turn"])
            rows = rows.filter(pc.is_in(rows["prompt_hash"], wanted))
            found.update(zip(*(rows[name].to_pylist() for name in ("id", "prompt_hash", "turn")), strict=True))
        return found

    def with_hashes(self, prompt_hashes: Collection[str]) -> Iterator[Prompt]:
        """The prompts whose hash is one of these, in order."""
        if not prompt_hashes:
            return
        wanted = pa.array(sorted(prompt_hashes))
        for group in range(self._file.num_row_groups):
            mask = pc.is_in(self._file.read_row_group(group, ["prompt_hash"])["prompt_hash"], wanted)
            if pc.any(mask).as_py():
                yield from _prompts(self._file.read_row_group(group, _COLUMNS).filter(mask), lambda *_: True)


def _prompts(rows: pa.Table, is_wanted: Callable[[str, str, int], bool]) -> Iterator[Prompt]:
    names = zip(*(rows[name].to_pylist() for name in ("id", "prompt_hash", "turn")), strict=True)
    for name, input_ids in zip(names, rows["input_ids"], strict=True):
        if is_wanted(*name):
            yield Prompt(*name, input_ids.values.to_numpy().tolist())
