"""vLLM's protocol, POST /v1/completions with ids in and out. Request, answer and facts; no I/O."""

import json

from tokenfill.responses.engines import (
    NotAnAnswer,
    Reply,
    ServerFacts,
    WrongProtocol,
    body_at,
    count,
    finished,
    model_names,
    served,
    shown,
    whole_ids,
)

COMPLETION_PATH = "/v1/completions"
READY_PATH = "/health"
FACTS_PATHS = ("/v1/models", "/version", "/openapi.json", "/get_server_info")

CONTEXT_MARGIN = 0
INPUT_MARGIN = 1
PART_TOKENS = None
STOPS_AT_IDS = True
STREAM_INTERVAL = 64  # ids an event, so that streaming costs little on both sides

ABORT_PATH = "/inference/v1/abort_requests"  # 403 unless the server was started with --enable-scale-out


def request(
    input_ids: list[int],
    *,
    max_new_tokens: int,
    sampling: dict,
    seed: int | None,
    request_id: str,
    model: str | None,
    stream: bool = False,
) -> dict:
    """JSON body. With `stream` the answer comes as events that `join` puts together."""
    body = {
        "prompt": input_ids,
        "max_tokens": max_new_tokens,
        "min_tokens": 0,
        "temperature": sampling["temperature"],
        "top_p": sampling["top_p"],
        "top_k": max(sampling["top_k"], 0),
        "min_p": sampling["min_p"],
        "repetition_penalty": sampling["repetition_penalty"],
        "presence_penalty": sampling["presence_penalty"],
        "frequency_penalty": sampling["frequency_penalty"],
        "stop": [],
        "stop_token_ids": sampling["stop_token_ids"],
        "ignore_eos": False,
        "n": 1,
        "echo": False,
        "seed": seed,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "include_stop_str_in_output": True,
        "add_special_tokens": False,
        "return_token_ids": True,
        "request_id": request_id,
        "stream": stream,
    }
    if model is not None:
        body["model"] = model
    if stream:
        body |= {"stream_interval": STREAM_INTERVAL, "stream_options": {"include_usage": True}}
    return body


def parse(body: object) -> Reply:
    """The answer in `body`. Raises NotAnAnswer."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise NotAnAnswer("malformed", "not an answer of vLLM: there is not one choice")
    choice, usage = choices[0], body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length", "abort"):
        raise NotAnAnswer("malformed", f"the finish reason is {reason!r}")
    reply = Reply(
        output_ids=whole_ids(choice.get("token_ids")),
        text=shown(choice.get("text")),
        finish_reason=reason,
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        model=body.get("model"),
    )
    return finished(reply)


def join(events: bytes) -> dict:
    """The body that a streamed answer amounts to, cut at any byte: "abort" if its end is missing.

    What holds no events is {}, which `parse` calls malformed.
    """
    choice = {"token_ids": [], "text": "", "finish_reason": None}
    body = {"choices": [choice], "usage": None, "model": None}
    blocks = events.replace(b"\r\n", b"\n").split(b"\n\n")
    if events and not blocks[0].startswith(b"data:"):
        return {}
    for block in blocks[:-1]:
        data = block.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            break
        try:
            event = json.loads(data)
            pieces = event.get("choices") or ()
            body["model"] = event.get("model") or body["model"]
            body["usage"] = event.get("usage") or body["usage"]
            for piece in pieces:
                choice["token_ids"] += piece.get("token_ids") or ()
                choice["text"] += piece.get("text") or ""
                choice["finish_reason"] = piece.get("finish_reason") or choice["finish_reason"]
        except (ValueError, AttributeError, TypeError):
            return {}
    choice["finish_reason"] = choice["finish_reason"] or "abort"
    return body


def abort(request_id: str) -> tuple[str, dict]:
    """(path, body) that make the waiting call answer with HTTP 200 and the ids so far.

    The server's own name for the request is `cmpl-<request_id>-<index of the prompt>`.
    """
    return ABORT_PATH, {"request_ids": [f"cmpl-{request_id}-0"]}


def room(context_length: int | None, prompt_tokens: int) -> int | None:
    """How many ids an answer to such a prompt can have: 0 if the server refuses it, None if unknown."""
    return None if context_length is None else max(0, context_length - prompt_tokens)


def facts(bodies: dict) -> ServerFacts:
    """What the answers at FACTS_PATHS, {path: (status, JSON or text)}, say. Raises WrongServer."""
    entries = served(bodies, "vllm")
    if "router_manager" in body_at(bodies, "/get_server_info"):
        raise WrongProtocol("is sglang-router, which takes no ids at /v1/completions: set engine.api: sglang.")
    if bodies.get("/v1/models", (None,))[0] == 404:
        raise WrongProtocol("is not vLLM (it has no /v1/models): engine.api must name its protocol.")
    names = model_names(entries)
    api = body_at(bodies, "/openapi.json")
    return ServerFacts(
        model=names[0] if names else None,
        context_length=min(filter(None, (count(x.get("max_model_len")) for x in entries)), default=None),
        version=body_at(bodies, "/version").get("version"),
        models=names,
        piece=_piece(api),
    )


def _piece(api: dict) -> str | None:
    """From the server's own description of its routes, where a switched-off abort is not listed."""
    if not api or ABORT_PATH in (api.get("paths") or {}):
        return "abort"
    schemas = (api.get("components") or {}).get("schemas") or {}
    fields = (schemas.get("CompletionRequest") or {}).get("properties") or {}
    return "stream" if "stream_interval" in fields else None
