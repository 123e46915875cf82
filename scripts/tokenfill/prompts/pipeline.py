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
from tokenfill.prompts.gather import Header, unpacked
from tokenfill.prompts.model import ModelFacts
from tokenfill.prompts.problem import RowProblem
from tokenfill.prompts.spool import other_id
from tokenfill.prompts.table import PromptTable, prompt_hash
from tokenfill.prompts.template import Renderer, SpecialTexts

_BATCH_ROWS, _BATCH_CHARACTERS = 512, 1 << 19
_BATCHES_AHEAD = 2


class Prompt(NamedTuple):
    """One prompt before it is encoded; `ids` in place of `text` where the row was tokenized already."""

    header: Header
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
        header, content = unpacked(payload)
        messages, tools, ids = orjson.loads(content)
        row_id = header.id
        if renamed:
            row_id = other_id(row_id, header.digest)
            self._accounts.notice("renamed")
        if ids is not None:
            yield Prompt(header, row_id, 0, "[]", None, "", ids)
            return
        if self._special.within_json(content):
            self._accounts.notice("special_in_text")
        shown = orjson.dumps(tools).decode() if tools else None
        for turn, end in enumerate(header.ends):
            asked = messages[:end]
            try:
                text = self._render(asked, tools)
            except RowProblem as problem:
                _skip(self._accounts, problem, header, row_id, turn)
                continue
            yield Prompt(header, row_id, turn, orjson.dumps(asked).decode(), shown, text)

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

    def keep(self, prompts: list[Prompt], encoded: list[np.ndarray | None]) -> None:
        for prompt, ids in zip(prompts, encoded, strict=True):
            try:
                self._keep(prompt, ids)
            except RowProblem as problem:
                _skip(self._accounts, problem, prompt.header, prompt.id, prompt.turn)

    def _keep(self, prompt: Prompt, ids: np.ndarray | None) -> None:
        if ids is None or len(ids) > self._limit:
            raise RowProblem("too_long", f"more than {self._limit} tokens")
        if not len(ids) or (prompt.ids is not None and self._special.issuperset(prompt.ids)):
            raise RowProblem("empty_prompt")
        if ids.max() >= self._vocab_size or ids.min() < 0:
            outside = ids[(ids >= self._vocab_size) | (ids < 0)][0]
            raise RowProblem("id_outside_vocabulary", f"{outside} of {self._vocab_size}")
        digest = prompt_hash(ids)
        if not self._seen.add(int(digest, 16)):
            raise RowProblem("duplicate")
        self._accounts.prompt(len(ids))
        self._table.append(prompt.id, prompt.turn, prompt.messages, prompt.tools, ids, digest, prompt.header.row)


def _skip(accounts: Accounts, problem: RowProblem, header: Header, row_id: str, turn: int) -> None:
    where = {"row": header.row, "file": header.file, "line": header.line, "turn": turn}
    accounts.skip(problem.reason, row_id=row_id, detail=problem.detail, **where)


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
    groups: Iterable[list[Prompt]], encode: Callable[[list[str]], list[np.ndarray | None]]
) -> Iterator[tuple[list[Prompt], list[np.ndarray | None]]]:
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


def _encode(group: list[Prompt], encode: Callable) -> list[np.ndarray | None]:
    fresh = iter(encode([prompt.text for prompt in group if prompt.ids is None]))
    return [next(fresh) if prompt.ids is None else np.array(prompt.ids, dtype=np.int64) for prompt in group]
