"""SGLang's own protocol, POST /generate, also through sglang-router. Request, answer and facts; no I/O."""

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

COMPLETION_PATH = "/generate"
READY_PATH = "/v1/models"  # /health generates a token and takes a second
FACTS_PATHS = ("/v1/models", "/server_info", "/get_server_info", "/get_model_info", "/workers")

CONTEXT_MARGIN = 2  # the last two places of the context are accepted and never filled
INPUT_MARGIN = 7  # a prompt longer than context - 7 is refused, however short the answer
PART_TOKENS = None  # parts as long as engine.part_tokens says
STOPS_AT_IDS = True

# What of /server_info is kept: it holds everything, keys included.
ARGUMENTS = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "revision",
    "tp_size",
    "dp_size",
    "attention_backend",
    "sampling_backend",
    "speculative_algorithm",
    "enable_deterministic_inference",
    "preferred_sampling_params",
    "allow_auto_truncate",
    "max_running_requests",
    "max_queued_requests",
    "chunked_prefill_size",
    "disable_radix_cache",
)


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
    """JSON body. `request_id` must not be the beginning of another one: SGLang aborts by prefix.

    `model` is not sent (a server hosts one) and `stream` is not used (each event repeats all ids).
    """
    params = {
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": 0,
        "temperature": sampling["temperature"],
        "top_p": sampling["top_p"],
        "top_k": sampling["top_k"] if sampling["top_k"] > 0 else -1,
        "min_p": sampling["min_p"],
        "repetition_penalty": sampling["repetition_penalty"],
        "presence_penalty": sampling["presence_penalty"],
        "frequency_penalty": sampling["frequency_penalty"],
        "stop": [],
        "stop_token_ids": sampling["stop_token_ids"],
        "ignore_eos": False,
        "n": 1,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
    }
    if seed is not None:
        params["sampling_seed"] = seed
    return {"input_ids": input_ids, "sampling_params": params, "rid": request_id, "stream": False}


def parse(body: object) -> Reply:
    """The answer in `body`. Raises NotAnAnswer."""
    meta = body.get("meta_info") if isinstance(body, dict) else None
    if not isinstance(meta, dict):
        raise NotAnAnswer("malformed", "not an answer of SGLang: there is no meta_info")
    finish = meta.get("finish_reason")
    reason = finish.get("type") if isinstance(finish, dict) else finish
    if reason == "stop" and isinstance(finish, dict) and str(finish.get("matched")).startswith("NaN"):
        raise NotAnAnswer("nan", "the server met NaN while sampling")
    if reason not in ("stop", "length", "abort"):
        raise NotAnAnswer("malformed", f"the finish reason is {reason!r}")
    reply = Reply(
        output_ids=whole_ids(body.get("output_ids")),
        text=shown(body.get("text")),
        finish_reason=reason,
        prompt_tokens=meta.get("prompt_tokens"),
        completion_tokens=meta.get("completion_tokens"),
    )
    return finished(reply)


def abort(request_id: str) -> tuple[str, dict]:
    """(path, body) that make the waiting call answer with HTTP 200 and the ids so far."""
    return "/abort_request", {"rid": request_id}


def room(context_length: int | None, prompt_tokens: int) -> int | None:
    """How many ids an answer to such a prompt can have: 0 if the server refuses it, None if unknown."""
    if context_length is None:
        return None
    return 0 if prompt_tokens > context_length - INPUT_MARGIN else context_length - CONTEXT_MARGIN - prompt_tokens


def facts(bodies: dict) -> ServerFacts:
    """What the answers at FACTS_PATHS, {path: (status, JSON or text)}, say. Raises WrongServer."""
    entries = served(bodies, "sglang")
    info = body_at(bodies, "/server_info") or body_at(bodies, "/get_server_info")
    model_info = body_at(bodies, "/get_model_info")
    if bodies.get("/v1/models", (None,))[0] == 404 or (entries and not info and not model_info):
        raise WrongProtocol("is not SGLang (it has no /server_info): engine.api must name its protocol.")
    names = model_names(entries) or tuple(filter(None, [model_info.get("served_model_name")]))
    is_router = "router_manager" in info
    longest_input = count(info.get("max_req_input_len"))
    lengths = [count(entry.get("max_model_len")) for entry in entries] + [
        longest_input and longest_input + INPUT_MARGIN - 1,
        count(info.get("context_length")),
    ]
    return ServerFacts(
        model=names[0] if names else None,
        context_length=min(filter(None, lengths), default=None),
        capacity=_capacity(info),
        version=info.get("version"),
        arguments={key: info[key] for key in ARGUMENTS if key in info},
        models=names,
        piece=None if is_router else "abort",
        workers=_workers(body_at(bodies, "/workers")) if is_router else (),
    )


def _capacity(info: dict) -> int | None:
    """Requests run at a time over all data-parallel ranks; their states know better than the arguments."""
    states = info.get("internal_states")
    states = [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []
    per_rank = [count(state.get("effective_max_running_requests_per_dp")) for state in states]
    if per_rank and all(per_rank):
        return sum(per_rank)
    most = count(info.get("max_running_requests"))
    return most and most * (count(info.get("dp_size")) or 1)


def _workers(body: dict) -> tuple[str, ...]:
    listed = body.get("workers")
    urls = [x.get("url") for x in listed if isinstance(x, dict)] if isinstance(listed, list) else []
    return tuple(url.rstrip("/") for url in urls if isinstance(url, str) and url.startswith("http"))
