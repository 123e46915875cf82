"""One message as templates expect it: role, text, tool calls with mappings as arguments. Rows are not known here."""

import json

from tokenfill.prompts.problem import RowProblem

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
}
_REASONING = ("reasoning_content", "reasoning", "thinking")


def role_of(message: object) -> str | None:
    """ "system", "user", "assistant" or "tool"; None where the message names no known role."""
    if not isinstance(message, dict):
        return None
    return ROLES.get(_tag(message))


def _tag(message: dict) -> str:
    tag = message.get("role", message.get("from"))
    return tag.strip().lower() if isinstance(tag, str) else ""


def normalise(message: object) -> dict:
    """A message with `role` and `content`, and with those of the fields about tools and reasoning that it has.

    Errors: RowProblem with the reason (unknown_role, content_not_text, bad_arguments).
    """
    role = role_of(message)
    if role is None:
        shown = _tag(message) if isinstance(message, dict) else type(message).__name__
        raise RowProblem("unknown_role", shown or "no role")
    result = {"role": role, "content": _text(message)}
    calls = _tool_calls(message, result["content"]) if role == "assistant" else None
    if calls:
        result["tool_calls"] = calls
        if _tag(message) in ("function_call", "tool_call"):
            result["content"] = ""
    for key in ("name", "tool_call_id"):
        if isinstance(message.get(key), str) and message[key]:
            result[key] = message[key]
    for key in _REASONING:
        if role == "assistant" and isinstance(message.get(key), str) and message[key]:
            result["reasoning_content"] = message[key]
            break
    return result


def _text(message: dict) -> str:
    for key in ("content", "value", "text", "system_prompt"):
        if (content := message.get(key)) is not None:
            break
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if isinstance(content, list):
        return "".join(_part(part) for part in content)
    raise RowProblem("content_not_text", type(content).__name__)


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if (
        isinstance(part, dict)
        and isinstance(part.get("text"), str)
        and part.get("type", "text") in ("text", "input_text")
    ):
        return part["text"]
    kind = part.get("type", "unknown") if isinstance(part, dict) else type(part).__name__
    raise RowProblem("content_not_text", f"{kind} part")


def _tool_calls(message: dict, content: str) -> list[dict] | None:
    if _tag(message) in ("function_call", "tool_call"):
        return _spelled_calls(content)
    calls = message.get("tool_calls")
    if isinstance(calls, str) and calls.strip():
        calls = _loads(calls)
    if not calls and isinstance(message.get("function_call"), dict):
        calls = [message["function_call"]]
    if not calls:
        return None
    if not isinstance(calls, list):
        raise RowProblem("bad_arguments", "tool_calls is no list")
    return [_call(call) for call in calls]


def _spelled_calls(content: str) -> list[dict] | None:
    """Calls that are written as JSON in the text of a message; None where the text is something else."""
    try:
        spelled = json.loads(content)
    except ValueError:
        return None
    calls = spelled if isinstance(spelled, list) else [spelled]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return None
    return [_call(call) for call in calls]


def _call(call: object) -> dict:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowProblem("bad_arguments", "a tool call without a name")
    result = {"type": "function", "function": {"name": function["name"], "arguments": _arguments(function)}}
    if isinstance(call.get("id"), str):
        result = {"id": call["id"]} | result
    return result


def _arguments(function: dict) -> dict:
    """The arguments as a mapping, whether they were stored so or as JSON text. Nothing and null are no arguments."""
    arguments = function.get("arguments", function.get("parameters"))
    if isinstance(arguments, str):
        arguments = _loads(arguments) if arguments.strip() else None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise RowProblem("bad_arguments", f"the arguments of {function['name']} are no mapping")
    return arguments


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise RowProblem("bad_arguments", "not valid JSON") from None
