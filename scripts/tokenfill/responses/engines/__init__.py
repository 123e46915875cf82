"""What all server protocols share: what an answer is, what is none, what a server says of itself. No I/O."""

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType

from tokenfill.errors import UserError

NAMES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py")))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as the server gave it. `output_ids` are the sampled ids, the stop token included."""

    output_ids: list[int]
    text: str
    finish_reason: str  # "stop" | "length"; "abort" only for the piece that NotAnAnswer carries
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None


class NotAnAnswer(Exception):
    """HTTP 200 that holds no answer.

    `kind`: "abort" (`reply` is the piece sampled so far, or None), "empty" (no ids), "malformed" (no
    body of this protocol, or an unknown finish reason), "nan" (numerical failure at the server).
    """

    def __init__(self, kind: str, message: str, reply: Reply | None = None):
        super().__init__(message)
        self.kind, self.message, self.reply = kind, message, reply


class WrongServer(Exception):
    """This run cannot use the server. The message goes on from the server's URL, which the caller knows."""


class WrongProtocol(WrongServer):
    """Another server's protocol is spoken on that port."""


class KeyRefused(WrongServer):
    """HTTP 401 or 403."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself; None where it does not tell."""

    model: str | None = None  # the first of `models`
    context_length: int | None = None  # most ids of prompt and answer together
    capacity: int | None = None  # requests it runs at a time
    vocab_size: int | None = None
    version: str | None = None
    arguments: dict = field(default_factory=dict)  # those that shape answers or speed; never a secret
    models: tuple[str, ...] = ()  # every name it can be asked for
    # How the ids sampled so far come back when we end a request: "abort" (`abort()` makes the waiting call
    # answer with them), "stream" (ask with stream=True, and `join` what had come), None (they are lost).
    piece: str | None = None
    # Base URLs of the servers behind this one: aborts go to each, and their facts fill in the missing ones.
    workers: tuple[str, ...] = ()


def protocol(name: str) -> ModuleType:
    """The module `engines/<name>.py`. Raises UserError for a name that has no file."""
    if name not in NAMES:
        raise UserError(f"engine.api: there is no protocol '{name}'; choose one of {', '.join(NAMES)}.")
    return import_module(f"{__name__}.{name}")


def is_penalised(sampling: Mapping) -> bool:
    """Whether what was generated so far changes the scores of what comes next."""
    return bool(sampling["repetition_penalty"] != 1 or sampling["presence_penalty"] or sampling["frequency_penalty"])


def finished(reply: Reply) -> Reply:
    """The reply itself if it ended by itself; NotAnAnswer "abort", with the piece in it, if it was ended."""
    if reply.finish_reason == "abort":
        raise NotAnAnswer("abort", "the request was aborted at the server", reply if reply.output_ids else None)
    if not reply.output_ids:
        raise NotAnAnswer("empty", "the answer has no ids")
    return reply


def cut_at_stop(reply: Reply, stop_ids: Set[int]) -> Reply:
    """The reply up to and with its first stop id: for servers that cannot be told of stop ids.

    Its ids are those of a server that had stopped there. The text of a cut answer is unknown, and left empty.
    """
    end = next((i + 1 for i, token in enumerate(reply.output_ids) if token in stop_ids), None)
    if end is None:
        return reply
    surplus = len(reply.output_ids) - end
    return replace(
        reply,
        output_ids=reply.output_ids[:end],
        text="" if surplus else reply.text,
        finish_reason="stop",
        completion_tokens=reply.completion_tokens and reply.completion_tokens - surplus,
    )


def whole_ids(value: object) -> list[int]:
    """`value` if it is a list of ints. Raises NotAnAnswer: "empty" for null, "malformed" for the rest."""
    if value is None:
        raise NotAnAnswer("empty", "the answer has no ids")
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise NotAnAnswer("malformed", "the ids of the answer are not a list of integers")
    return value


def shown(value: object) -> str:
    """The text of an answer; "" where there is none, since the ids are what counts."""
    return value if isinstance(value, str) else ""


def behind(facts: ServerFacts, workers: list[ServerFacts]) -> ServerFacts:
    """A router's facts with what its workers say: the least context, the sum of their capacities."""
    lengths = [w.context_length for w in workers if w.context_length]
    capacities = [w.capacity for w in workers]
    sizes = {w.vocab_size for w in workers if w.vocab_size}
    return replace(
        facts,
        context_length=facts.context_length or min(lengths, default=None),
        capacity=facts.capacity or (sum(capacities) if capacities and all(capacities) else None),
        vocab_size=facts.vocab_size or (min(sizes) if sizes else None),
        version=facts.version or next((w.version for w in workers if w.version), None),
        arguments=facts.arguments or (workers[0].arguments if workers else {}),
        piece="abort" if workers and all(w.piece == "abort" for w in workers) else facts.piece,
    )


def wrong_model(facts: ServerFacts, served_model: str | None) -> str | None:
    """A sentence if the server does not host the model that requests will name, else None."""
    if served_model is None or not facts.models or served_model in facts.models:
        return None
    return f"hosts {', '.join(facts.models)}, not engine.served_model '{served_model}'."


def body_at(bodies: dict, path: str) -> dict:
    """The JSON object that `path` answered with, or {}. Raises KeyRefused on 401 and 403."""
    status, body = bodies.get(path, (None, None))
    if status in (401, 403):
        raise KeyRefused(
            f"refuses the key (HTTP {status}: {error_message(status, body)}): engine.api_key_env must name "
            "the environment variable that holds it."
        )
    return body if status == 200 and isinstance(body, dict) else {}


OWNERS = {"sglang": "sglang", "vllm": "vllm", "llamacpp": "llamacpp"}  # `owned_by` in /v1/models → our name


def served(bodies: dict, name: str) -> list[dict]:
    """The entries of /v1/models. Raises WrongProtocol if another protocol's server owns them."""
    data = body_at(bodies, "/v1/models").get("data")
    entries = [x for x in data if isinstance(x, dict)] if isinstance(data, list) else []
    for other in {OWNERS.get(str(entry.get("owned_by"))) for entry in entries} - {None, name}:
        raise WrongProtocol(f"speaks the protocol '{other}', but engine.api is '{name}': set engine.api: {other}.")
    return entries


def model_names(entries: list[dict]) -> tuple[str, ...]:
    """The names that /v1/models lists, aliases included, each once."""
    names = chain.from_iterable([x.get("id"), *(x.get("aliases") or ())] for x in entries)
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def count(value: object) -> int | None:
    """A positive int, or None for anything else."""
    return value if type(value) is int and value > 0 else None


def error_message(status: int | None, text: object) -> str:
    """One short line from any server's error body: JSON of the five known shapes, text, HTML or nothing."""
    body = text
    if isinstance(text, str):
        try:
            body = json.loads(text)
        except ValueError:
            body = text
    if isinstance(body, dict):
        error = body.get("error")
        inner = error.get("message") if isinstance(error, dict) else error
        body = inner or body.get("message") or body.get("detail") or body
    if not isinstance(body, str):
        body = json.dumps(body, ensure_ascii=False) if body else ""
    if body.lstrip()[:1] == "<":
        body = "an HTML page"
    line = " ".join(body.split())[:300]
    return line or f"HTTP {status} without a message"
