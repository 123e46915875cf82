"""llama.cpp's own protocol, POST /completion with ids in and out. Request, answer and facts; no I/O."""

from tokenfill.responses.engines import (
    NotAnAnswer,
    Reply,
    ServerFacts,
    WrongProtocol,
    body_at,
    count,
    finished,
    is_penalised,
    model_names,
    served,
    shown,
    whole_ids,
)

COMPLETION_PATH = "/completion"
READY_PATH = "/health"
FACTS_PATHS = ("/v1/models", "/props")

CONTEXT_MARGIN = 0
INPUT_MARGIN = 1
# A closed connection brings nothing back; parts this short end by themselves within a drain's patience.
PART_TOKENS = 256
STOPS_AT_IDS = False  # it stops at its model's own end tokens; for others, `cut_at_stop`

FINISH = {"eos": "stop", "word": "stop", "limit": "length"}
FIELDS = ["content", "tokens", "tokens_predicted", "tokens_evaluated", "stop_type", "truncated", "model"]
# Temperature before the filters, as SGLang and vLLM do; the rest of llama.cpp's own chain is left out.
SAMPLERS = ["penalties", "temperature", "top_k", "top_p", "min_p"]


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
    """JSON body. `request_id`, `model` and stop ids other than the model's own have no field here.

    `stream` is not used: streamed events lose the ids inside a split UTF-8 character.
    """
    return {
        "prompt": input_ids,
        "n_predict": max_new_tokens,
        "temperature": sampling["temperature"],
        "top_k": max(sampling["top_k"], 0),
        "top_p": sampling["top_p"],
        "min_p": sampling["min_p"],
        "repeat_penalty": sampling["repetition_penalty"],
        "presence_penalty": sampling["presence_penalty"],
        "frequency_penalty": sampling["frequency_penalty"],
        "repeat_last_n": len(input_ids) + max_new_tokens if is_penalised(sampling) else 0,
        "samplers": SAMPLERS,
        "dynatemp_range": 0.0,
        "mirostat": 0,
        "seed": -1 if seed is None else seed,
        "stop": [],
        "ignore_eos": False,
        "logit_bias": [],
        "grammar": "",
        "n_probs": 0,
        "cache_prompt": True,
        "return_tokens": True,
        "response_fields": FIELDS,
        "stream": False,
    }


def parse(body: object) -> Reply:
    """The answer in `body`. Raises NotAnAnswer."""
    if not isinstance(body, dict) or "stop_type" not in body:
        raise NotAnAnswer("malformed", "not an answer of llama.cpp: there is no stop_type")
    reason = FINISH.get(str(body["stop_type"]))
    if reason is None:
        raise NotAnAnswer("malformed", f"the stop type is {body['stop_type']!r}")
    reply = Reply(
        output_ids=whole_ids(body.get("tokens")),
        text=shown(body.get("content")),
        finish_reason=reason,
        prompt_tokens=body.get("tokens_evaluated"),
        completion_tokens=body.get("tokens_predicted"),
        model=body.get("model"),
    )
    return finished(reply)


def abort(request_id: str) -> None:
    """None: the only way to end a request is to close its connection."""


def room(context_length: int | None, prompt_tokens: int) -> int | None:
    """How many ids an answer to such a prompt can have: 0 if the server refuses it, None if unknown."""
    return None if context_length is None else max(0, context_length - prompt_tokens)


def facts(bodies: dict) -> ServerFacts:
    """What the answers at FACTS_PATHS, {path: (status, JSON or text)}, say. Raises WrongServer."""
    entries = served(bodies, "llamacpp")
    props = body_at(bodies, "/props")
    if not props and bodies.get("/props", (None,))[0] == 404:
        raise WrongProtocol("is not llama.cpp (it has no /props): engine.api must name its protocol.")
    meta = entries[0].get("meta") if entries else None
    meta = meta if isinstance(meta, dict) else {}
    names = model_names(entries)
    context = (props.get("default_generation_settings") or {}).get("n_ctx")
    return ServerFacts(
        model=names[0] if names else props.get("model_alias"),
        context_length=count(context) or count(meta.get("n_ctx")),
        capacity=count(props.get("total_slots")),
        vocab_size=count(meta.get("n_vocab")),
        version=props.get("build_info"),
        arguments={key: meta[key] for key in ("ftype", "n_params", "n_ctx_train") if key in meta},
        models=names,
    )
