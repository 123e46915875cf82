"""Texts to ids, in batches over all cores: no text longer than the limit is tokenized to its end."""

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
        begins = tokenizer("a", add_special_tokens=True)["input_ids"][:1] if bos is not None else []
        self._bos = bos if begins == [bos] else None

    def encode(self, texts: list[str], limit: int) -> list[list[int] | None]:
        """Ids of each text; None for a text of more than `limit` ids."""
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

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        if self._backend is None:
            return self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        batch = getattr(self._backend, "encode_batch_fast", self._backend.encode_batch)
        ids = [encoding.ids for encoding in batch(texts, add_special_tokens=False)]
        return [self._escape.ids(found) for found in ids] if self._escape else ids

    def _one_bos(self, ids: list[int]) -> list[int]:
        if self._bos is None:
            return ids
        first = next((n for n, token in enumerate(ids) if token != self._bos), len(ids))
        return ids if first == 1 else [self._bos, *ids[first:]]


def longest_token(tokenizer) -> int:
    """Characters of the longest text that one token can stand for."""
    return max(map(len, tokenizer.get_vocab()))
