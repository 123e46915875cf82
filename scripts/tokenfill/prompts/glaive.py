"""Chats written as one text with USER / ASSISTANT / FUNCTION RESPONSE marks, as glaive's function calling data."""

import json
import re

_MARK = re.compile(r"(?:\A|\n)\s*(USER|ASSISTANT|FUNCTION RESPONSE):")
_ROLES = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
_CALL = re.compile(r"<functioncall>\s*(\{.*)", re.DOTALL)
_QUOTED = re.compile(r"""("arguments"\s*:\s*)'(.*)'(\s*\})""", re.DOTALL)
_END = "<|endoftext|>"


def messages(chat: str) -> list[dict]:
    """The messages of a marked chat, calls as `tool_calls`; empty where the text has no marks."""
    found = []
    pieces = _MARK.split(chat)
    for mark, text in zip(pieces[1::2], pieces[2::2], strict=True):
        text = text.replace(_END, "").strip()
        message = {"role": _ROLES[mark], "content": text}
        if mark == "ASSISTANT" and (match := _CALL.search(text)) and (call := _call(match[1].strip())):
            message |= {"content": text[: match.start()].strip(), "tool_calls": [call]}
        found.append(message)
    return found


def system_text(system: str) -> str:
    """The system text without the mark that it begins with."""
    return re.sub(r"\A\s*SYSTEM:\s*", "", system).strip()


def _call(text: str) -> dict | None:
    """A call whose arguments may be JSON in single quotes; None where it can't be read (then it stays text)."""
    quoted = _QUOTED.search(text)
    arguments = quoted[2].replace("\\'", "'") if quoted else None
    try:
        if quoted:
            call = json.loads(text[: quoted.start(1)] + '"arguments": null' + quoted[3])
            call["arguments"] = json.loads(arguments, strict=False)
        else:
            call = json.loads(text, strict=False)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments") or {}}}
