"""Rows of a source to the spool: what each asks, its id, and why it asks nothing. Nothing is rendered here."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import orjson

from tokenfill.errors import UserError
from tokenfill.prompts import shapes, sources
from tokenfill.prompts.accounts import Accounts
from tokenfill.prompts.exclude import Excluded
from tokenfill.prompts.problem import RowProblem
from tokenfill.prompts.progress import Progress
from tokenfill.prompts.spool import Spool


class Header(NamedTuple):
    """What stands before a row's content in the spool: where it came from, and where in it the prompts end."""

    row: int
    id: str
    digest: str
    ends: list[int]
    file: str
    line: int | None


def unpacked(payload: bytes) -> tuple[Header, bytes]:
    """A payload of the spool as its header and its content, the JSON text of [messages, tools, input_ids]."""
    header, _, content = payload.partition(b"\n")
    return Header(*orjson.loads(header)), content


class Reading:
    """How rows are read: the part of the settings that says so."""

    def __init__(self, settings: dict):
        self.format = settings["format"]
        self.turns = settings["turns"]
        self.columns = settings["columns"]
        shapes.check_columns(self.columns)
        self.wanted = shapes.wanted_columns(self.columns)

    def rows(self, parts: Iterable[sources.Source]) -> Iterator[sources.Row]:
        for part in parts:
            yield from sources.read_rows(part, self.wanted)

    def value(self, row: sources.Row) -> dict:
        """The row's columns under our names. Errors: RowProblem where it is no JSON object."""
        if row.problem is not None:
            raise RowProblem("bad_json", row.problem)
        if not isinstance(row.value, dict):
            raise RowProblem("not_an_object", type(row.value).__name__)
        return shapes.renamed(row.value, self.columns)

    def conversation(self, value: dict) -> shapes.Conversation:
        """What a row asks. Errors: RowProblem."""
        return shapes.conversation(value, self.format, self.turns)


def gather(
    reading: Reading,
    parts: Iterable[sources.Source],
    spool: Spool,
    accounts: Accounts,
    *,
    longest: int,
    excluded: Excluded,
) -> None:
    """Puts every row that asks something into the spool, and accounts for the others.

    `longest`: characters beyond which a text has surely too many tokens, so that it is not even kept.
    """
    with Progress("reading", "rows") as progress:
        for number, row in enumerate(reading.rows(parts)):
            accounts.rows += 1
            progress.advance()
            row_id = None
            try:
                value = reading.value(row)
                row_id = own_id(value)
                asked = reading.conversation(value)
                if sum(len(message["content"]) for message in asked.messages) > longest:
                    raise RowProblem("too_long", f"more than {longest} characters")
                if excluded and any(map(excluded.matches, user_texts(asked.messages))):
                    raise RowProblem("excluded")
                row_id, content = _content(row_id, asked, accounts)
            except RowProblem as problem:
                accounts.skip(
                    problem.reason, row=number, row_id=row_id, detail=problem.detail, file=row.file, line=row.line
                )
                continue
            digest = hashlib.sha256(content).hexdigest()
            row_id = row_id or digest[:16]
            header = Header(number, row_id, digest[:8], asked.ends, row.file, row.line)
            spool.add(row_id, digest, orjson.dumps(tuple(header)) + b"\n" + content)


def _content(row_id: str | None, asked: shapes.Conversation, accounts: Accounts) -> tuple[str | None, bytes]:
    content = [asked.messages, asked.tools, asked.input_ids]
    try:
        if row_id is not None:
            row_id.encode()
        return row_id, orjson.dumps(content)
    except (TypeError, UnicodeEncodeError):
        pass
    try:
        mended = whole(row_id), orjson.dumps(whole(content))
    except TypeError as error:  # integers beyond 64 bits, in arguments or schemas
        raise RowProblem("bad_arguments", str(error)) from None
    accounts.notice("surrogates")
    return mended


def whole(value):
    """A JSON value whose lone surrogates are U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {whole(key): whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return value


def own_id(row: dict) -> str | None:
    """The id that a row has by itself, as text with all its digits; None where there is none or an empty one."""
    for name in shapes.IDS:
        value = row.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return str(value)
    return None


def user_texts(messages: Iterable[dict]) -> Iterator[str]:
    return (message["content"] for message in messages if message["role"] == "user")


def excluded_texts(exclude: list[str]) -> Excluded:
    """The texts of the files that must not be asked, read row by row like any source."""
    reading = Reading({"format": "auto", "turns": "each", "columns": {}})
    texts = []
    for row in reading.rows(sources.parse_source(exclude)):
        try:
            texts += user_texts(reading.conversation(reading.value(row)).messages)
        except RowProblem:
            continue
    if exclude and not texts:
        raise UserError(f"exclude: no prompt was found in {', '.join(exclude)}.")
    return Excluded(texts)
