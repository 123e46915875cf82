"""Rows to conversations: which columns hold the chat, and which of its messages make the prompts."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from tokenfill.errors import UserError
from tokenfill.prompts import glaive, tools
from tokenfill.prompts.messages import normalise, role_of
from tokenfill.prompts.problem import RowProblem

IDS = ("id", "uuid", "prompt_id", "trajectory_id", "conversation_id", "question_id", "task_id")
CHATS = ("messages", "conversations", "conversation", "trajectory")
TEXTS = ("prompt", "question", "query", "problem")
TOOLS = ("tools", "available_tools", "functions", "function")
OURS = ("id", "messages", "prompt", "system", "instruction", "input", "chat", "tools", "input_ids", "loss_mask")
WANTED = {*IDS, *CHATS, *TEXTS, *TOOLS, *OURS, "turns", "metadata"}


@dataclass
class Conversation:
    """What a row asks: `messages` up to the last prompt's end, and where in it each prompt ends (exclusive).

    A row that is already tokenized has `input_ids` and no messages.
    """

    messages: list[dict] = field(default_factory=list)
    tools: list[dict] | None = None
    ends: list[int] = field(default_factory=list)
    input_ids: list[int] | None = None


def _messages(row: dict) -> list | None:
    for name in CHATS:
        if (chat := _listed(row, name)) is not None:
            return chat
    return None


def _glaive(row: dict) -> list | None:
    chat = row.get("chat")
    return glaive.messages(chat) or None if isinstance(chat, str) else None


def _instruction(row: dict) -> list | None:
    instruction, more = row.get("instruction"), row.get("input")
    if not isinstance(instruction, str):
        return None
    text = f"{instruction}\n\n{more}" if isinstance(more, str) and more.strip() else instruction
    return [{"role": "user", "content": text}]


def _prompt(row: dict) -> list | None:
    for name in (*TEXTS, "turns", "input"):
        if (chat := _listed(row, name)) is not None:
            return chat
        if isinstance(row.get(name), str):
            return [{"role": "user", "content": row[name]}]
    return None


_READERS: dict[str, Callable[[dict], list | None]] = {
    "messages": _messages,
    "glaive": _glaive,
    "instruction": _instruction,
    "prompt": _prompt,
}


def _listed(row: dict, name: str) -> list | None:
    """A column as a list of messages: a list, JSON text of one, or (without recorded answers) a list of turns."""
    value = row.get(name)
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            value = json.loads(value)
        except ValueError:
            if name in CHATS:
                raise RowProblem("bad_messages", f"{name} is not valid JSON") from None
            return None
    if isinstance(value, dict) and value and all(isinstance(column, list) for column in value.values()):
        # a list of structs, as some tables store it: a list for each field
        value = [dict(zip(value, fields, strict=False)) for fields in zip(*value.values(), strict=False)]
    if not isinstance(value, list):
        if name in CHATS and value is not None:
            raise RowProblem("bad_messages", f"{name} is {type(value).__name__}")
        return None
    if value and isinstance(value[0], list):  # turns whose answers are not recorded: only the first can be asked
        value = value[0]
    if value and isinstance(value[0], str):
        return [{"role": "user", "content": value[0]}]
    return value


def renamed(row: dict, columns: dict[str, str | None]) -> dict:
    """The row with our names for the columns that the config maps; dots reach inside, null hides a column."""
    result = dict(row)
    for ours, theirs in columns.items():
        result[ours] = None if theirs is None else _reach(row, theirs)
    return result


def _reach(row: dict, path: str) -> object:
    if path in row:
        return row[path]
    value: object = row
    for name in path.split("."):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return None
        value = value.get(name) if isinstance(value, dict) else None
    return value


def wanted_columns(columns: dict[str, str | None]) -> set[str]:
    """Names of the top-level columns that can matter: only these are read where a file allows it."""
    named = {path for path in columns.values() if path is not None}
    return WANTED | named | {path.split(".")[0] for path in named}


def conversation(row: dict, format: str = "auto", turns: str = "last") -> Conversation:
    """The prompts of one row, whose columns have our names already.

    Errors: RowProblem with the reason that the row gives no prompt.
    """
    if format == "tokenized":
        return _tokenized(row)
    readers = _READERS.values() if format == "auto" else [_READERS[format]]
    chat = next((chat for read in readers if (chat := read(row)) is not None), None)
    if chat is None:
        if format == "auto" and row.get("input_ids") is not None:
            return _tokenized(row)
        raise RowProblem("no_prompt_column", "columns: " + ", ".join(map(str, list(row)[:20])))
    chat = _with_system(chat, row.get("system"))
    ends = prompt_ends([role_of(message) for message in chat], turns)
    messages = [normalise(message) for message in chat[: ends[-1]]]
    return _with_tools(messages, ends, row)


def prompt_ends(roles: list[str | None], turns: str) -> list[int]:
    """Where the prompts end (exclusive): behind each last user or tool message before another's turn.

    `turns` picks the last, the first or each of them. Errors: RowProblem where there is none.
    """
    asked = [role in ("user", "tool") for role in roles]
    ends = [n for n, ask in enumerate(asked, 1) if ask and not (n < len(asked) and asked[n])]
    if not ends:
        raise RowProblem("no_user_message" if roles else "no_messages")
    return {"last": ends[-1:], "first": ends[:1], "each": ends}[turns]


def _with_system(chat: list, system: object) -> list:
    if not isinstance(system, str) or not system.strip() or (chat and role_of(chat[0]) == "system"):
        return chat
    return [{"role": "system", "content": glaive.system_text(system)}, *chat]


def _with_tools(messages: list[dict], ends: list[int], row: dict) -> Conversation:
    """Tools from their column, else from the metadata, else from the system text, which then loses them."""
    found = next((found for name in TOOLS if (found := tools.schemas(_tools_like(row, name)))), None)
    metadata = row.get("metadata")
    if found is None and metadata is not None:
        found = tools.schemas(_reach({"metadata": metadata}, "metadata.tools"))
    if messages and messages[0]["role"] == "system":
        text, lifted = tools.lift(messages[0]["content"])
        if lifted:
            found = found or lifted
            messages = [{**messages[0], "content": text}, *messages[1:]] if text else messages[1:]
            ends = ends if text else [end - 1 for end in ends]
    if not any(message["content"].strip() for message in messages if message["role"] in ("user", "tool")):
        raise RowProblem("empty_prompt")
    return Conversation(messages, found, ends)


def _tools_like(row: dict, name: str) -> object:
    value = row.get(name)
    # only `tools` is sure to hold schemas; the other names also stand for other things
    if name in ("function", "functions") and not isinstance(value, list):
        return None
    return value


def _tokenized(row: dict) -> Conversation:
    ids = row.get("input_ids")
    if isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], list):
        ids = ids[0]
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise RowProblem("bad_input_ids", "input_ids is no list of integers")
    mask = row.get("loss_mask")
    if isinstance(mask, list) and len(mask) == len(ids) and 1 in mask:
        ids = ids[: _last_answer(mask)]
    if not ids:
        raise RowProblem("empty_prompt")
    return Conversation(input_ids=ids)


def _last_answer(mask: list[int]) -> int:
    """Where the last run of ones begins: the recorded answer, which is no part of the prompt."""
    end = len(mask) - mask[::-1].index(1)
    while end and mask[end - 1]:
        end -= 1
    return end


def check_columns(columns: dict[str, str | None]) -> None:
    """Errors: UserError for a name in `columns` that means nothing."""
    if unknown := set(columns) - set(OURS):
        raise UserError(f"columns: {min(unknown)} is not one of {', '.join(OURS)}.")
