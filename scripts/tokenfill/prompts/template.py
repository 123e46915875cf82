"""Messages to the text that the served model would see. How that text becomes ids is not decided here."""

import json
import re
from datetime import datetime
from pathlib import Path

from tokenfill.errors import UserError
from tokenfill.prompts.problem import RowProblem


def load_tokenizer(folder: Path, template: Path | None = None, trust_remote_code: bool = False):
    """transformers' tokenizer of a model folder, with the template file in place of its own if there is one.

    Errors: UserError where the folder holds no tokenizer or chat template, or wants to run code of its own.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    except Exception as error:
        reason = str(error).strip().split("\n", 1)[0].rstrip(".")
        if "trust_remote_code" in str(error):
            raise UserError(
                f"model: the tokenizer in {folder} runs code of its own; set trust_remote_code: true if you trust it."
            ) from None
        raise UserError(f"model: {folder} holds no readable tokenizer ({type(error).__name__}: {reason}).") from None
    if template is not None:
        try:
            tokenizer.chat_template = template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"chat_template: {template} cannot be read ({error}).") from None
    if not tokenizer.chat_template:
        raise UserError(f"model: {folder} has no chat template; name a template file under chat_template.")
    return tokenizer


class Renderer:
    """The tokenizer's chat template with the clock pinned to `date` and the config's `template_kwargs`."""

    def __init__(self, tokenizer, date: str, kwargs: dict | None = None):
        moment = pinned_moment(date)
        self._tokenizer = tokenizer
        self._kwargs = {"date_string": moment.strftime("%d %b %Y")} | (kwargs or {})
        pin_clock(tokenizer, moment)

    def render(self, messages: list[dict], tools: list[dict] | None) -> str:
        """The prompt's text, the header of the answer at its end.

        Errors: RowProblem("template_refused") with the template's own words.
        """
        try:
            return self._apply(messages, tools)
        except TypeError:
            # a template that joins arguments to text works with JSON text only
            try:
                return self._apply(_with_json_arguments(messages), tools)
            except TypeError as error:
                raise RowProblem("template_refused", f"TypeError: {error}") from None

    def _apply(self, messages: list[dict], tools: list[dict] | None) -> str:
        from jinja2 import TemplateError

        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, tokenize=False, **self._kwargs
            )
        except TemplateError as error:
            raise RowProblem("template_refused", str(error).split("\n", 1)[0]) from None
        except (ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise RowProblem("template_refused", f"{type(error).__name__}: {error}") from None


def _with_json_arguments(messages: list[dict]) -> list[dict]:
    def spelled(call: dict) -> dict:
        function = call["function"]
        return call | {"function": function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}}

    return [
        message | {"tool_calls": [spelled(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def pinned_moment(date: str) -> datetime:
    """The moment that templates are told. Errors: UserError where `template_date` is no ISO date."""
    try:
        return datetime.fromisoformat(str(date))
    except ValueError:
        raise UserError(f"template_date: {date} is no date; write it as 2026-01-01 or 2026-01-01T12:00.") from None


def pin_clock(tokenizer, moment: datetime) -> None:
    """Makes `strftime_now` of transformers' template environment answer with `moment`, for this template.

    Errors: UserError where the template is not valid Jinja.
    """
    from jinja2 import TemplateSyntaxError
    from transformers.utils import chat_template_utils

    template = tokenizer.chat_template
    for text in template.values() if isinstance(template, dict) else [template]:
        # the compiled template is cached by transformers, and its environment is the one that renders
        try:
            compiled = chat_template_utils._compile_jinja_template(text)
        except TemplateSyntaxError as error:
            raise UserError(f"chat_template: line {error.lineno} is not valid Jinja ({error.message}).") from None
        compiled.environment.globals["strftime_now"] = moment.strftime


def special_texts(tokenizer) -> list[str]:
    """The texts of the special tokens, longest first; added tokens that are ordinary text are not among them."""
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted((special | set(tokenizer.all_special_tokens)) - {""}, key=len, reverse=True)


def special_ids(tokenizer) -> set[int]:
    """The ids of the special tokens."""
    return set(tokenizer.convert_tokens_to_ids(special_texts(tokenizer)))


class SpecialTexts:
    """Finds special tokens that are spelled out in data."""

    def __init__(self, tokenizer):
        texts = special_texts(tokenizer)
        # a plain search for the few beginnings is far faster than the pattern on texts that hold none
        self._beginnings = sorted({text[:4] for text in texts})
        self._bytes = [json.dumps(text, ensure_ascii=False)[1:-1].encode() for text in self._beginnings]
        self.pattern = re.compile("|".join(map(re.escape, texts)) or "(?!)")

    def within(self, text: str) -> bool:
        return any(part in text for part in self._beginnings) and self.pattern.search(text) is not None

    def within_json(self, content: bytes) -> bool:
        """Whether a string of this JSON text spells out one of them."""
        if not any(part in content for part in self._bytes):
            return False
        return any(map(self.within, _strings(json.loads(content))))


def _strings(value: object):
    """Every string in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
