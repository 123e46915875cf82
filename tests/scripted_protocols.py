"""How each engine spells a request, an answer and an error, for the scripted server. No state, no I/O."""

import time
from dataclasses import dataclass, field, replace

SAMPLING_FIELDS = {
    "max_new_tokens",
    "min_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "ignore_eos",
    "skip_special_tokens",
    "no_stop_trim",
    "n",
    "spaces_between_special_tokens",
    "sampling_seed",
    "logit_bias",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "custom_params",
}


class Refused(Exception):
    """A request that the engine answers with an error: (status, message)."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status, self.message = status, message


@dataclass
class Asked:
    """A request in the server's own terms."""

    ids: list[int]
    max_tokens: int
    rid: str | None = None
    stop_ids: list[int] = field(default_factory=list)
    stream: bool = False
    want_ids: bool = True


@dataclass
class Answer:
    """An answer before it is spelt; `finish` is stop, length, abort, nan, or anything a fault makes it."""

    ids: list[int] | None
    text: str
    finish: str | None
    prompt_tokens: int
    completion_tokens: int
    truncated: bool = False


def ids_of(value) -> list[int]:
    if not isinstance(value, list) or not value or not all(type(i) is int for i in value):
        raise Refused(400, "the prompt must be a list of token ids that is not empty")
    return value


class SGLang:
    path, abort_path = "/generate", "/abort_request"

    def read(self, body: dict, script: dict) -> Asked:
        sampling = body.get("sampling_params") or {}
        unknown = set(sampling) - SAMPLING_FIELDS
        if unknown:
            raise Refused(400, f"sampling parameter {sorted(unknown)[0]} is not known")
        ids, room = ids_of(body.get("input_ids")), script["context_length"]
        wanted = sampling.get("max_new_tokens", 128)
        wanted = room - 2 - len(ids) if wanted is None else wanted
        if len(ids) >= room - 6:
            raise Refused(400, f"input of {len(ids)} tokens, context length {room}")
        if len(ids) + wanted > room:
            raise Refused(400, f"{len(ids)} + {wanted} tokens asked for, context length {room}")
        return Asked(ids, min(wanted, room - 2 - len(ids)), body.get("rid"), sampling.get("stop_token_ids") or [])

    def answer(self, asked: Asked, answer: Answer, script: dict) -> dict:
        finish = {
            "stop": {"type": "stop", "matched": answer.ids[-1] if answer.ids else None},
            "length": {"type": "length", "length": answer.completion_tokens},
            "abort": {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
            "nan": {"type": "stop", "matched": "NaN happened"},
            None: None,
        }.get(answer.finish, {"type": answer.finish})
        counts = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
        meta = {
            "id": asked.rid or "0",
            "finish_reason": finish,
            **counts,
            "cached_tokens": 0,
            "weight_version": "default",
        }
        ids = {} if answer.ids is None else {"output_ids": answer.ids}
        return {"text": answer.text, **ids, "meta_info": meta}

    def error(self, status: int, message: str) -> dict:
        if status == 401:
            return {"error": "Unauthorized"}
        return {"object": "error", "message": message, "type": "error", "param": None, "code": status}

    def aborts(self, body: dict, rids: list[str]) -> list[str]:
        return rids if body.get("abort_all") else [rid for rid in rids if rid == body.get("rid")]

    def info(self, script: dict) -> dict:
        room, capacity = script["context_length"], script["capacity"]
        model = {"model_path": script["model"], "tokenizer_path": script["model"], "is_generation": True}
        server = {
            "model_path": script["model"],
            "served_model_name": script["model"],
            "version": script["version"],
            "context_length": room,
            "max_req_input_len": room - 6,
            "max_running_requests": capacity,
            "internal_states": [{"max_running_requests": capacity}],
            "status": "ready",
        }
        return {
            "/server_info": server,
            "/get_server_info": server,
            "/model_info": model,
            "/get_model_info": model,
        }


class VLLM:
    path, abort_path = "/v1/completions", "/inference/v1/abort_requests"

    def read(self, body: dict, script: dict) -> Asked:
        if body.get("model") not in (None, script["model"]):
            raise Refused(404, f"the model {body['model']} does not exist")
        ids, room = ids_of(body.get("prompt")), script["context_length"]
        if len(ids) >= room:
            raise Refused(400, f"input of {len(ids)} tokens, context length {room}")
        wanted = body.get("max_tokens") or 16
        rid = body.get("request_id")
        asked = Asked(ids, min(wanted, room - len(ids)), rid and f"cmpl-{rid}", body.get("stop_token_ids") or [])
        return replace(asked, want_ids=bool(body.get("return_token_ids")))

    def answer(self, asked: Asked, answer: Answer, script: dict) -> dict:
        finish = "stop" if answer.finish == "nan" else answer.finish
        choice = {
            "index": 0,
            "text": answer.text,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
        }
        if asked.want_ids and answer.ids is not None:
            choice |= {"token_ids": answer.ids, "prompt_token_ids": asked.ids}
        counts = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
        return {
            "id": asked.rid or "cmpl-0",
            "object": "text_completion",
            "created": int(time.time()),
            "model": script["model"],
            "choices": [choice],
            "usage": {**counts, "total_tokens": sum(counts.values())},
        }

    def error(self, status: int, message: str) -> dict:
        if status == 401:
            return {"error": "Unauthorized"}
        return {"error": {"message": message, "type": "error", "param": None, "code": status}}

    def aborts(self, body: dict, rids: list[str]) -> list[str]:
        named = body.get("request_ids") or []
        return [rid for rid in rids if rid in named or f"{rid}-0" in named]

    def info(self, script: dict) -> dict:
        return {"/version": {"version": script["version"]}}


class LlamaCpp:
    path, abort_path = "/completion", None

    def read(self, body: dict, script: dict) -> Asked:
        ids, room = ids_of(body.get("prompt")), script["context_length"]
        if len(ids) >= room:
            raise Refused(400, f"exceed_context_size: {len(ids)} tokens, context {room}")
        wanted = body.get("n_predict", -1)
        room_left = room - len(ids)
        asked = Asked(ids, room_left if wanted < 0 else max(1, min(wanted, room_left)), stream=bool(body.get("stream")))
        return replace(asked, want_ids=bool(body.get("return_tokens")))

    def answer(self, asked: Asked, answer: Answer, script: dict) -> dict:
        stop_type = {"stop": "eos", "length": "limit", "nan": "limit", "abort": "none"}.get(
            answer.finish, answer.finish
        )
        ids = {} if answer.ids is None else {"tokens": answer.ids if asked.want_ids else []}
        return {
            "index": 0,
            "content": answer.text,
            **ids,
            "stop": True,
            "model": script["model"],
            "tokens_predicted": answer.completion_tokens,
            "tokens_evaluated": answer.prompt_tokens,
            "truncated": answer.truncated,
            "stop_type": stop_type,
            "stopping_word": "",
            "generation_settings": {},
        }

    def chunk(self, ids: list[int], text: str) -> dict:
        return {"index": 0, "content": text, "tokens": ids, "stop": False}

    def error(self, status: int, message: str) -> dict:
        kind = "exceed_context_size_error" if message.startswith("exceed") else "error"
        return {"error": {"code": status, "message": message, "type": kind}}

    def info(self, script: dict) -> dict:
        slots, room = script["capacity"] or 1, script["context_length"]
        props = {
            "total_slots": slots,
            "model_path": script["model"],
            "model_alias": script["model"],
            "default_generation_settings": {"n_ctx": room},
            "build_info": script["version"],
        }
        return {"/props": props}


def models_page(script: dict) -> dict:
    """GET /v1/models, with the context length and vocabulary where each engine has them."""
    meta = {"n_vocab": script["vocab_size"], "n_ctx_train": script["context_length"]}
    entry = {
        "id": script["model"],
        "object": "model",
        "root": script["model"],
        "max_model_len": script["context_length"],
    }
    return {"object": "list", "data": [{**entry, "meta": meta}]}


PROTOCOLS = {"sglang": SGLang(), "vllm": VLLM(), "llamacpp": LlamaCpp()}
