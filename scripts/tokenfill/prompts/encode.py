"""Texts to ids, in batches over all cores: no text longer than the limit is tokenized to its end."""

from itertools import chain

import numpy as np

from tokenfill.prompts.escape import Escape

_SLICE = 1 << 16  # characters
_SLACK = 16  # ids that cutting a text in the middle can add


class Encoder:
    """Ids of rendered texts, with exactly one BOS where the model's sequences begin with one."""

    def __init__(self, tokenizer, escape: Escape | None = None):
        self._tokenizer, self._escape = tokenizer, escape
        self._backend = escape.backend if escape else getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        bos = tokenizer.bos_token_id
        begins = list(tokenizer("a", add_special_tokens=True)["input_ids"])[:1] if bos is not None else []
        self._bos = bos if begins == [bos] else None

    def encode(self, texts: list[str], limit: int) -> list[np.ndarray | None]:
        """Ids of each text, int32; None for a text of more than `limit` ids."""
        exceeds = [self._exceeds(text, limit) for text in texts]
        found = iter(self._encode([text for text, long in zip(texts, exceeds, strict=True) if not long]))
        encoded = [None if long else self._one_bos(next(found)) for long in exceeds]
        return [ids if ids is not None and len(ids) <= limit else None for ids in encoded]

    def _exceeds(self, text: str, limit: int) -> bool:
        """Whether a long text surely has more ids than `limit`, counted slice by slice only until that is sure."""
        if len(text) <= _SLICE:
            return False
        count = 0
        for start in range(0, len(text), _SLICE):
            count += len(self._encode([text[start : start + _SLICE]])[0]) - _SLACK
            if count > limit:
                return True
        return False

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        if not texts:
            return []
        if self._backend is None:
            lists = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        else:
            # the fast form leaves out the offsets, which nothing here needs
            batch = getattr(self._backend, "encode_batch_fast", self._backend.encode_batch)
            lists = [encoding.ids for encoding in batch(texts, add_special_tokens=False)]
        ends = np.cumsum([len(ids) for ids in lists])
        # one flat array for all: much faster than an array for each
        flat = np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(ends[-1]))
        return np.split(self._escape.ids(flat) if self._escape else flat, ends[:-1])

    def _one_bos(self, ids: np.ndarray) -> np.ndarray:
        if self._bos is None:
            return ids
        others = np.flatnonzero(ids[:8] != self._bos)
        first = others[0] if len(others) else min(len(ids), 8)
        return ids if first == 1 else np.concatenate([np.array([self._bos], dtype=np.int32), ids[first:]])


def longest_token(tokenizer) -> int:
    """Characters of the longest text that one token can stand for."""
    return max(map(len, tokenizer.get_vocab()))
