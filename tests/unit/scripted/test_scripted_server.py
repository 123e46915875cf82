"""The scripted server keeps its own promises: exact answers, exact continuation, faults as written."""

import asyncio

import aiohttp
import pytest
from scripted_server import ScriptedServer
from tiny_tokenizer import ASSISTANT_HEADER, IM_END, IM_START, make_model_folder, tokenizer

PROMPT = [IM_START, 40, 41, 42, IM_END, *ASSISTANT_HEADER]


def sglang(ids, n, **more):
    return "/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": n}, **more}


def vllm(ids, n, **more):
    return "/v1/completions", {"prompt": ids, "max_tokens": n, "return_token_ids": True, **more}


def llamacpp(ids, n, **more):
    return "/completion", {"prompt": ids, "n_predict": n, "return_tokens": True, **more}


def read(body):
    if "output_ids" in body:
        return body["output_ids"], body["meta_info"]["finish_reason"]["type"]
    if "choices" in body:
        return body["choices"][0]["token_ids"], body["choices"][0]["finish_reason"]
    return body["tokens"], {"eos": "stop", "limit": "length"}[body["stop_type"]]


def with_server(script, test):
    async def run():
        async with ScriptedServer(script) as server, aiohttp.ClientSession(server.url) as session:

            async def post(path, body):
                async with session.post(path, json=body) as answer:
                    return answer.status, await answer.json(content_type=None)

            return await test(server, post)

    return asyncio.run(run())


@pytest.mark.parametrize("ask", [sglang, vllm, llamacpp])
@pytest.mark.parametrize("prompt", [PROMPT, [9, 8, 7, 6]], ids=["header", "no header"])
def test_parts_joined_are_the_whole_answer(ask, prompt):
    async def test(server, post):
        _, whole = await post(*ask(prompt, 100))
        parts, finish = [], "length"
        while finish == "length":
            _, body = await post(*ask(prompt + parts, 7))
            piece, finish = read(body)
            parts += piece
        return read(whole), parts

    (ids, finish), parts = with_server({"length": {"fixed": 30}}, test)
    assert parts == ids
    assert (len(ids), ids[-1], finish) == (30, IM_END, "stop")


def test_log_normal_lengths_have_the_mean_that_was_asked_for():
    async def test(server, post):
        shape = {"mean": 400, "sigma": 0.9, "cap": 3000}
        server.update(length={"lognormal": shape}, delay=0)
        bodies = [await post(*sglang([5, 6, n % 256, n // 256], 3000)) for n in range(300)]
        return [len(body["output_ids"]) for _, body in bodies]

    lengths = with_server({}, test)
    assert 320 < sum(lengths) / len(lengths) < 480


def test_an_abort_gives_back_the_piece_so_far():
    async def test(server, post):
        asking = asyncio.create_task(post(*sglang(PROMPT, 1000, rid="a")))
        await asyncio.sleep(0.1)
        await post("/abort_request", {"rid": "a"})
        _, piece = await asking
        _, rest = await post(*sglang(PROMPT + piece["output_ids"], 10, rid="b"))
        _, whole = await post(*sglang(PROMPT, len(piece["output_ids"]) + 10, rid="c"))
        return piece, rest, whole

    piece, rest, whole = with_server({"length": {"fixed": 1000}, "rate": 500}, test)
    assert piece["meta_info"]["finish_reason"]["type"] == "abort"
    assert 20 <= len(piece["output_ids"]) <= 200
    assert piece["output_ids"] + rest["output_ids"] == whole["output_ids"]


def test_the_stream_of_llamacpp_holds_the_same_ids():
    async def test(server, post):
        _, whole = await post(*llamacpp(PROMPT, 100))
        async with aiohttp.ClientSession(server.url) as session:
            path, body = llamacpp(PROMPT, 100, stream=True)
            async with session.post(path, json=body) as answer:
                lines = [line async for line in answer.content if line.startswith(b"data: ")]
        import json

        return whole["tokens"], [json.loads(line[6:]) for line in lines]

    whole, chunks = with_server({"length": {"fixed": 40}, "rate": 400}, test)
    assert [t for chunk in chunks[:-1] for t in chunk["tokens"]] == whole
    assert len(chunks) > 2 and chunks[-1]["stop"]


def test_running_requests_share_the_speed():
    async def test(server, post):
        start = asyncio.get_running_loop().time()
        await asyncio.gather(*(post(*sglang([n, 1], 100)) for n in range(10)))
        return asyncio.get_running_loop().time() - start

    # 10 requests of 100 tokens at 4,000 * 10 / (10 + 10) tokens/s
    took = with_server({"length": {"fixed": 100}, "rate": {"total": 4000, "half_at": 10}}, test)
    assert 0.45 < took < 1.0


def test_capacity_queues_or_refuses():
    async def test(server, post):
        await asyncio.gather(*(post(*sglang([n, 1], 10)) for n in range(6)))
        queued = server.stats()
        server.update(max_queued=1)
        answers = await asyncio.gather(*(post(*sglang([n, 2], 10)) for n in range(6)))
        return queued, sorted(status for status, _ in answers)

    queued, statuses = with_server({"capacity": 2, "delay": 0.02}, test)
    assert (queued["max_running"], queued["max_inflight"], queued["by_status"]) == (2, 6, {"200": 6})
    assert statuses == [200, 200, 200, 503, 503, 503]


def test_context_limits_are_those_of_each_engine():
    async def test(server, post):
        prompt = [1] * 60
        return [await post(*ask(prompt, 100)) for ask in (sglang, vllm, llamacpp)]

    refused, clamped, cut = with_server({"context_length": 100, "length": {"fixed": 500}}, test)
    assert refused[0] == 400
    assert len(read(clamped[1])[0]) == 40
    assert len(read(cut[1])[0]) == 40 and cut[1]["truncated"]


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ({"status": 503, "retry_after": 2}, lambda status, body: status == 503),
        ({"fault": "abort"}, lambda status, body: body["meta_info"]["finish_reason"]["type"] == "abort"),
        ({"fault": "null_finish"}, lambda status, body: body["meta_info"]["finish_reason"] is None),
        ({"fault": "no_ids"}, lambda status, body: "output_ids" not in body),
        ({"fault": "wrong_count"}, lambda status, body: body["meta_info"]["completion_tokens"] == 21),
        ({"fault": "prompt_at_head"}, lambda status, body: body["output_ids"][:5] == PROMPT[-5:]),
        ({"fault": "out_of_vocabulary"}, lambda status, body: max(body["output_ids"]) >= 320),
        (
            {"fault": "nan"},
            lambda status, body: body["meta_info"]["finish_reason"]["matched"] == "NaN happened",
        ),
        ({"fault": "cycle"}, lambda status, body: body["output_ids"][:8] == [65, 66, 67, 32] * 2),
        ({"fault": "early_length"}, lambda status, body: len(body["output_ids"]) == 10),
    ],
    ids=lambda value: value.get("fault", "status") if isinstance(value, dict) else "",
)
def test_a_fault_happens_to_the_requests_it_names(fault, seen):
    async def test(server, post):
        return [await post(*sglang(PROMPT, 200)) for _ in range(3)], server.log

    answers, log = with_server({"faults": [{"when": {"nth": [2]}, "do": fault}]}, test)
    assert [bool(answer[0] == 200 and answer[1] == answers[0][1]) for answer in answers] == [
        True,
        False,
        True,
    ]
    assert seen(*answers[1])
    assert [entry["attempt"] for entry in log] == [1, 2, 3]


@pytest.mark.parametrize("fault", ["reset", "cut", "die"])
def test_a_broken_connection_is_one(fault):
    async def test(server, post):
        with pytest.raises(aiohttp.ClientError):
            await post(*sglang(PROMPT, 200))
        await asyncio.sleep(0.01)
        await server.up() if fault == "die" else None
        return await post(*sglang(PROMPT, 200))

    assert with_server({"faults": [{"when": {"nth": [1]}, "do": {"fault": fault}}]}, test)[0] == 200


def test_tokenizer_ends_a_prompt_with_the_header(tmp_path):
    import json

    folder = make_model_folder(tmp_path / "model")
    assert tokenizer().encode("<|im_start|>assistant\n").ids == ASSISTANT_HEADER
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"][0] == IM_END
    assert tokenizer().decode([*b"plain bytes"]) == "plain bytes"
