"""Prompts that must not be asked: those of benchmark files, and those that were asked already."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

_WORDS = 8  # a shorter text is excluded only where it is the whole message


class Excluded:
    """Texts that must not be trained on. A message matches if it is one of them, or holds one of some length.

    Case, white space and Unicode forms do not matter.
    """

    def __init__(self, texts: Iterable[str]):
        self._whole: set[str] = set()
        self._within: dict[str, list[str]] = defaultdict(list)
        for text in {normal(text) for text in texts} - {""}:
            self._whole.add(text)
            words = text.split()
            if len(words) >= _WORDS:
                self._within[max(words, key=lambda word: (len(word), word))].append(text)

    def __bool__(self) -> bool:
        return bool(self._whole)

    def matches(self, message: str) -> bool:
        text = normal(message)
        if text in self._whole:
            return True
        # an excluded text can only be within one that holds its longest word
        return any(part in text for word in self._within.keys() & set(text.split()) for part in self._within[word])


def normal(text: str) -> str:
    return " ".join(re.split(r"\s+", unicodedata.normalize("NFKC", text).casefold().strip()))


class Seen:
    """64-bit hashes met so far, 8 bytes each: a sorted array, and a small set of the latest."""

    def __init__(self):
        self._sorted = np.empty(0, dtype=np.uint64)
        self._latest: set[int] = set()

    def add(self, value: int) -> bool:
        """Whether the hash is new."""
        if value in self._latest or self._holds(value):
            return False
        self._latest.add(value)
        if len(self._latest) > 1 << 16:
            self.extend(np.empty(0, dtype=np.uint64))
        return True

    def extend(self, values: np.ndarray) -> None:
        """Adds many at once."""
        latest = np.fromiter(self._latest, dtype=np.uint64, count=len(self._latest))
        self._sorted = np.unique(np.concatenate([self._sorted, latest, values]))
        self._latest.clear()

    def _holds(self, value: int) -> bool:
        place = self._sorted.searchsorted(np.uint64(value))
        return bool(place < len(self._sorted) and self._sorted[place] == value)
