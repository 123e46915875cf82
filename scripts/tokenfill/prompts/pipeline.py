"""Spooled rows to encoded prompts: rendering and encoding overlap, in the order of the rows, in bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import orjson

from tokenfill.prompts.accounts import Accounts
from tokenfill.prompts.escape import Escape, plain
from tokenfill.prompts.exclude import Seen
from tokenfill.prompts.model import ModelFacts
from tokenfill.prompts.problem import RowProblem
from tokenfill.prompts.spool import other_id
from tokenfill.prompts.table import PromptTable, prompt_hash
from tokenfill.prompts.template import Renderer, SpecialTexts, texts_of

_BATCH_ROWS, _BATCH_CHARACTERS = 512, 1 << 20
_BATCHES_AHEAD = 2


class Prompt(NamedTuple):
    """One prompt before it is encoded; `ids` in place of `text` where the row was tokenized already."""

    row: int
    id: str
    turn: int
    messages: str
    tools: str | None
    text: str
    ids: list[int] | None = None


class Rendering:
    """Payloads of the spool to rendered prompts; what the templates refuse goes to the accounts."""

    def __init__(self, renderer: Renderer, special: SpecialTexts, escape: Escape | None, accounts: Accounts):
        self._renderer, self._special, self._escape = renderer, special, escape
        self._accounts = accounts

    def prompts(self, payload: bytes, renamed: bool) -> Iterator[Prompt]:
        """The prompts of one row. `renamed`: an earlier row has the same id and another content."""
        header, _, content = payload.partition(b"\n")
        row, row_id, digest, ends = orjson.loads(header)
        messages, tools, ids = orjson.loads(content)
        if renamed:
            row_id = other_id(row_id, digest)
            self._accounts.notice("renamed")
        if ids is not None:
            yield Prompt(row, row_id, 0, "[]", None, "", ids)
            return
        if any(self._special.within(text) for text in texts_of([messages, tools])):
            self._accounts.notice("special_in_text")
        shown = orjson.dumps(tools).decode() if tools else None
        for turn, end in enumerate(ends):
            asked = messages[:end]
            try:
                text = self._render(asked, tools)
            except RowProblem as problem:
                self._accounts.skip(problem.reason, row=row, row_id=row_id, detail=problem.detail, turn=turn)
                continue
            yield Prompt(row, row_id, turn, orjson.dumps(asked).decode(), shown, text)

    def _render(self, messages: list[dict], tools: list[dict] | None) -> str:
        if self._escape is None:
            text = readable = self._renderer.render(messages, tools)
        else:
            text = self._escape.swap(self._renderer.render(self._escape.mark(messages), self._escape.mark(tools)))
            readable = plain(text)
        for message in messages:
            if message["role"] == "system" and message["content"].strip() not in readable:
                self._accounts.notice("system_not_rendered")
                break
        if tools and tools[0]["function"]["name"] not in readable:
            self._accounts.notice("tools_not_rendered")
        if readable.rstrip().endswith("<think>"):
            self._accounts.notice("think_open")
        return text


class Keeping:
    """Encoded prompts to the table, but those that are too long, malformed or were met before."""

    def __init__(
        self, table: PromptTable, accounts: Accounts, seen: Seen, facts: ModelFacts, special: set[int], limit: int
    ):
        self._table, self._accounts, self._seen = table, accounts, seen
        self._vocab_size, self._special, self._limit = facts.vocab_size, special, limit

    def keep(self, prompts: list[Prompt], encoded: list[list[int] | None]) -> None:
        for prompt, ids in zip(prompts, encoded, strict=True):
            try:
                self._keep(prompt, ids)
            except RowProblem as problem:
                place = {"turn": prompt.turn, "detail": problem.detail}
                self._accounts.skip(problem.reason, row=prompt.row, row_id=prompt.id, **place)

    def _keep(self, prompt: Prompt, ids: list[int] | None) -> None:
        if ids is None or len(ids) > self._limit:
            raise RowProblem("too_long", f"more than {self._limit} tokens")
        array = np.array(ids, dtype=np.int64)
        if not len(array) or (prompt.ids is not None and self._special.issuperset(ids)):
            raise RowProblem("empty_prompt")
        if array.max() >= self._vocab_size or array.min() < 0:
            outside = array[(array >= self._vocab_size) | (array < 0)][0]
            raise RowProblem("id_outside_vocabulary", f"{outside} of {self._vocab_size}")
        digest = prompt_hash(array)
        if not self._seen.add(int(digest, 16)):
            raise RowProblem("duplicate")
        self._accounts.prompt(len(ids))
        self._table.append(prompt.id, prompt.turn, prompt.messages, prompt.tools, array, digest, prompt.row)


def batches(prompts: Iterable[Prompt]) -> Iterator[list[Prompt]]:
    """Groups of about equal work; a long prompt ends its group."""
    batch, characters = [], 0
    for prompt in prompts:
        batch.append(prompt)
        characters += len(prompt.text)
        if len(batch) == _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def encoded(
    groups: Iterable[list[Prompt]], encode: Callable[[list[str]], list[list[int] | None]]
) -> Iterator[tuple[list[Prompt], list[list[int] | None]]]:
    """(group, its ids) in order. The next groups are rendered while one is encoded, which needs no GIL."""
    with ThreadPoolExecutor(1) as executor:
        waiting: deque = deque()
        for group in groups:
            waiting.append((group, executor.submit(_encode, group, encode)))
            if len(waiting) > _BATCHES_AHEAD:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()


def _encode(group: list[Prompt], encode: Callable) -> list[list[int] | None]:
    fresh = iter(encode([prompt.text for prompt in group if prompt.ids is None]))
    return [next(fresh) if prompt.ids is None else prompt.ids for prompt in group]
