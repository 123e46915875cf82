"""Special tokens in data as ordinary text, while those that the template writes stay tokens."""

import json

import numpy as np

from tokenfill.errors import UserError
from tokenfill.prompts.template import SpecialTexts

# private-use characters: one breaks a special token apart, two enclose those of the template
_BREAK, _OPEN, _CLOSE = "\uf8f0", "\uf8f1", "\uf8f2"
_REMOVED = {ord(mark): None for mark in (_BREAK, _OPEN, _CLOSE)}


class Escape:
    """Data is marked before it is rendered; a copy of the tokenizer knows the template's tokens by other names.

    So the text between the template's tokens is encoded as a whole, as it would be if it held no special token.
    """

    def __init__(self, tokenizer):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError(
                "special_tokens_in_text: escape needs a tokenizer.json, which this model has not; use keep."
            )
        self._special = SpecialTexts(tokenizer)
        self.backend, self._ids = _renamed(backend, self._special.pattern)

    def mark(self, value):
        """The JSON value with every special token in its strings broken apart."""
        if isinstance(value, str):
            value = plain(value)
            if not self._special.within(value):
                return value
            return self._special.pattern.sub(lambda match: match[0][0] + _BREAK + match[0][1:], value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.mark(item) for item in value]
        return value

    def swap(self, rendered: str) -> str:
        """The rendered text with the template's tokens under their other names, and the data as it was."""
        named = self._special.pattern.sub(lambda match: _OPEN + match[0] + _CLOSE, rendered)
        return named.replace(_BREAK, "")

    def ids(self, ids: np.ndarray) -> np.ndarray:
        """The copy's ids as the model's."""
        return self._ids[ids]


def plain(text: str) -> str:
    """The text without any of the marks."""
    return text.translate(_REMOVED) if any(mark in text for mark in (_BREAK, _OPEN, _CLOSE)) else text


def _renamed(backend, pattern):
    """A copy of the tokenizer whose special tokens have other names, and a table from its ids to the model's."""
    from tokenizers import Tokenizer

    state = json.loads(backend.to_str())
    for token in state["added_tokens"]:
        if token["special"] or pattern.fullmatch(token["content"]):
            token["content"] = _OPEN + token["content"] + _CLOSE
    copy = Tokenizer.from_str(json.dumps(state | {"post_processor": None, "truncation": None, "padding": None}))
    size = max(copy.get_vocab_size(), *copy.get_vocab().values(), *backend.get_vocab().values()) + 1
    table = np.arange(size, dtype=np.int32)
    for token in state["added_tokens"]:
        table[copy.token_to_id(token["content"])] = token["id"]
    return copy, table
