"""Rows that give prompts, kept on disk while they are read and given back in their final order, in little memory."""

import hashlib
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

_BUCKET = 32 << 20  # bytes that are brought into order at a time
_MOST_BUCKETS = 200  # open files
_STEP = 1 << 14  # rows
_MIX = np.uint64(0x9E3779B97F4A7C15)


def hash64(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


class Spool:
    """Payloads by number (0, 1, … in the order they are added), with what decides on their order and their ids.

    `order` of the payloads is a hash of (seed, id); rows that share an id with an earlier one and differ in content
    are known by another id, `id#` and the beginning of their content's hash, and take that one's place.
    """

    def __init__(self, folder: Path, seed: int | None):
        """`seed` None keeps the order in which rows are added."""
        self._seed, self._folder = seed, folder
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115, closed by __exit__
        self._ends, self._ids, self._contents = array("Q"), array("Q"), array("Q")
        self._keys, self._other_keys = array("Q"), array("Q")
        self._size = 0

    def __len__(self) -> int:
        return len(self._ends)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def add(self, row_id: str, digest: str, payload: bytes) -> None:
        """Keeps a payload. `digest` is the hex hash of what it asks, by which equal rows are known."""
        self._file.write(payload)
        self._size += len(payload)
        self._ends.append(self._size)
        self._ids.append(hash64(row_id.encode()))
        self._contents.append(int(digest[:16], 16))
        if self._seed is not None:
            self._keys.append(self._key(row_id))
            self._other_keys.append(self._key(other_id(row_id, digest)))

    def _key(self, row_id: str) -> int:
        return hash64(f"{self._seed}\0{row_id}".encode())

    def arrange(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(numbers in the final order, numbers of repeated rows, a mask by number of those with another id).

        Asked once, when all rows are in: what decided on the order is let go.
        """
        ids, contents = np.asarray(self._ids), np.asarray(self._contents)
        first_of_id = np.zeros(len(ids), bool)
        first_of_id[_first_places(ids)] = True
        first_of_both = np.zeros(len(ids), bool)
        first_of_both[_first_places(ids * _MIX ^ contents)] = True
        renamed = first_of_both & ~first_of_id
        kept = np.flatnonzero(first_of_both)
        if self._seed is not None:
            keys = np.where(renamed, np.asarray(self._other_keys), np.asarray(self._keys))
            kept = kept[np.argsort(keys[kept], kind="stable")]
            del keys
        repeated = np.flatnonzero(~first_of_both)
        del ids, contents
        self._ids = self._contents = self._keys = self._other_keys = None
        return kept, repeated, renamed

    def payloads(self, numbers: np.ndarray) -> Iterator[bytes]:
        """Payloads in the order of `numbers`; many are brought into order bucket by bucket, without random reads."""
        ends = np.asarray(self._ends).view(np.int64)
        lengths = np.diff(ends, prepend=0)
        filled = np.cumsum(lengths[numbers])
        if len(numbers) == 0 or filled[-1] <= _BUCKET or np.all(np.diff(numbers) > 0):
            for number in numbers:
                self._file.seek(ends[number] - lengths[number])
                yield self._file.read(lengths[number])
            return
        bucket = ((filled - 1) // max(_BUCKET, filled[-1] // _MOST_BUCKETS + 1)).astype(np.int16)
        del filled
        with ExitStack() as stack:
            files = [stack.enter_context(TemporaryFile(dir=self._folder)) for _ in range(bucket[-1] + 1)]
            target = np.full(len(self), -1, dtype=np.int16)
            target[numbers] = bucket
            self._file.seek(0)
            for start in range(0, len(self), _STEP):  # a Python integer takes four times the room of an array's
                step = slice(start, start + _STEP)
                for length, chosen in zip(lengths[step].tolist(), target[step].tolist(), strict=True):
                    payload = self._file.read(length)
                    if chosen >= 0:
                        files[chosen].write(payload)
            for chosen, file in enumerate(files):
                yield from _in_order(file, numbers[bucket == chosen], lengths)
                file.truncate(0)


def _in_order(file, numbers: np.ndarray, lengths: np.ndarray) -> Iterator[bytes]:
    """Payloads of a file that holds those of `numbers` by increasing number."""
    stored = np.sort(numbers)
    ends = np.cumsum(lengths[stored])
    file.seek(0)
    content = file.read()
    for place in np.searchsorted(stored, numbers):
        yield content[ends[place] - lengths[stored[place]] : ends[place]]


def other_id(row_id: str, digest: str) -> str:
    """The id of a row whose own id an earlier row with another content has."""
    return f"{row_id}#{digest[:8]}"


def _first_places(keys: np.ndarray) -> np.ndarray:
    return np.unique(keys, return_index=True)[1]
