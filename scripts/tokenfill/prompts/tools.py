"""Tool schemas from wherever a row keeps them: a column, its metadata, or the text of its system message."""

import json
import re

from tokenfill.prompts.problem import RowProblem

_BLOCKS = (  # tool lists that other models' templates wrote into the system text
    re.compile(r"<\|im_system\|>tool_declare<\|im_middle\|>(.*?)<\|im_end\|>", re.DOTALL),
    re.compile(r"<tools>(.*?)</tools>", re.DOTALL),
)
_OPENING = re.compile(r'\{\s*"|\[\s*\{')  # where an object, or a list of them, may begin
_DECODER = json.JSONDecoder()


def schemas(value: object) -> list[dict] | None:
    """Tools as a list of {"type": "function", "function": {...}}; None where there are none.

    Errors: RowProblem("bad_tools") where the value is neither a list of tools nor JSON text of one.
    """
    if isinstance(value, str):
        if not value.strip():
            return None
        try:
            value = json.loads(value)
        except ValueError:
            raise RowProblem("bad_tools", "not valid JSON") from None
    if isinstance(value, dict):
        value = [value]
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise RowProblem("bad_tools", type(value).__name__)
    return [_schema(tool) for tool in value]


def _schema(tool: object) -> dict:
    if isinstance(tool, str):
        try:
            tool = json.loads(tool)
        except ValueError:
            raise RowProblem("bad_tools", "a tool that is no JSON object") from None
    if isinstance(tool, dict):
        if isinstance(tool.get("function"), dict) and isinstance(tool["function"].get("name"), str):
            return {"type": "function"} | tool
        if isinstance(tool.get("name"), str):
            return {"type": "function", "function": tool}
    raise RowProblem("bad_tools", "a tool without a name")


def lift(system: str) -> tuple[str, list[dict] | None]:
    """Takes tools out of a system text: (what is left of the text, the tools or None).

    Found are blocks of known marks, and JSON objects or lists whose members have a name and parameters. The sentence
    that only introduced such a list goes with it, since the model's template writes its own.
    """
    for block in _BLOCKS:
        if match := block.search(system):
            tools = _listed(match[1])
            if tools:
                return (system[: match.start()] + system[match.end() :]).strip(), tools
    if '"name"' not in system:
        return system, None
    tools, first, last, at = [], None, 0, 0
    while (at := _opening(system, at)) >= 0:
        try:
            value, end = _DECODER.raw_decode(system, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        found = value if isinstance(value, list) else [value]
        if found and all(_is_tool(tool) for tool in found):
            tools += found
            first, last = (at if first is None else first), end
        at = end
    if first is None:
        return system, None
    return _joined(system[:first], system[last:]), schemas(tools)


def _listed(text: str) -> list[dict] | None:
    """Tools in a marked block: one JSON list, or objects one after the other."""
    tools, at = [], 0
    while (at := _opening(text, at)) >= 0:
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        tools += value if isinstance(value, list) else [value]
    try:
        return schemas(tools)
    except RowProblem:
        return None


def _opening(text: str, start: int) -> int:
    found = _OPENING.search(text, start)
    return found.start() if found else -1


def _is_tool(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    function = value["function"] if isinstance(value.get("function"), dict) else value
    return isinstance(function.get("name"), str) and ("parameters" in function or "description" in function)


def _joined(before: str, after: str) -> str:
    paragraphs = before.rstrip().split("\n")
    if re.search(r"\b(functions?|tools?)\b.*[-:]$", paragraphs[-1], re.IGNORECASE):
        paragraphs.pop()
    return "\n".join(part for part in ("\n".join(paragraphs).strip(), after.strip()) if part)
