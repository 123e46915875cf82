"""What one request costs the client: CPU of the worker against a bare aiohttp loop that posts, parses and appends.

    python benchmarks/client_cost.py [--requests 20000] [--in-flight 256 2048] [--repeats 3]

A server in another process answers each request of 500 ids after 50 ms with 800 ids. Both clients keep the same number
in flight, send the same bodies and write one line an answer. CPU is the client process's user + system time between its
first request and its end.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "scripts"))

PROMPT_IDS, ANSWER_IDS, SECONDS, VOCAB, EOS = 500, 800, 0.05, 150_000, 149_999
SAMPLING = {"temperature": 0.8, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
SAMPLING |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "stop_token_ids": [EOS]}


class Answering(asyncio.Protocol):
    """A server of one fixed answer, lean enough that it does not slow the clients down."""

    def connection_made(self, transport):
        self.transport, self.seen, self.need = transport, bytearray(), None

    def data_received(self, data):
        self.seen += data
        while (end := self.seen.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.seen[:end])
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.seen) < end + 4 + length:
                return
            del self.seen[: end + 4 + length]
            path = head.split(b" ", 2)[1].decode()
            delay = SECONDS if path == "/generate" else 0
            asyncio.get_running_loop().call_later(delay, self.transport.write, RESPONSES.get(path, RESPONSES[None]))


def responses() -> dict:
    dice = random.Random(0)
    ids = [dice.randrange(EOS) for _ in range(ANSWER_IDS - 1)] + [EOS]
    words = [f"{dice.choice(['river', 'and', 'the', 'cat', 'of'])} " for _ in range(ANSWER_IDS)]
    meta = {"id": "0", "finish_reason": {"type": "stop", "matched": EOS}, "prompt_tokens": PROMPT_IDS}
    meta |= {"completion_tokens": ANSWER_IDS, "cached_tokens": 0, "weight_version": "default", "e2e_latency": SECONDS}
    pages = {
        "/generate": {"text": "".join(words), "output_ids": ids, "meta_info": meta},
        "/v1/models": {"data": [{"id": "bench", "owned_by": "sglang", "max_model_len": 32768}]},
        "/server_info": {"version": "0", "max_running_requests": 4096, "context_length": 32768},
    }
    found = {path: http(200, json.dumps(page).encode()) for path, page in pages.items()}
    return {**found, None: http(404, b"{}")}


def http(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def serve() -> None:
    global RESPONSES
    RESPONSES = responses()
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0, backlog=8192)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def prompts(count: int) -> list[list[int]]:
    dice = random.Random(1)
    base = [dice.randrange(EOS) for _ in range(PROMPT_IDS)]
    return [[*base[:-2], n // 1000, n % 1000] for n in range(count)]


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# the bare loop


def bare(url: str, requests: int, in_flight: int, folder: Path) -> None:
    import aiohttp
    import orjson
    from tokenfill.responses.engines.sglang import request

    async def run() -> None:
        waiting = iter(enumerate(prompts(requests)))
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            with (folder / "bare.jsonl").open("ab", buffering=0) as file:

                async def one_after_another() -> None:
                    for n, ids in waiting:
                        options = {"max_new_tokens": 4096, "sampling": SAMPLING, "seed": None, "model": None}
                        body = request(ids, request_id=f"{n:032x}", **options)
                        headers = {"Content-Type": "application/json"}
                        async with session.post(url + "/generate", data=orjson.dumps(body), headers=headers) as answer:
                            reply = orjson.loads(await answer.read())
                        line = {"id": n, "output_ids": reply["output_ids"], "text": reply["text"]}
                        file.write(orjson.dumps({**line, "meta": reply["meta_info"]}) + b"\n")

                await asyncio.gather(*(one_after_another() for _ in range(in_flight)))

    measure(lambda: asyncio.run(run()), requests, folder / "bare.jsonl")


# the worker


def worker(url: str, requests: int, in_flight: int, folder: Path) -> None:
    from tokenfill.responses.worker import fill

    results = folder / "results"
    lay_down(url, requests, in_flight, results)
    dataset = results / "bench"
    measure(
        lambda: fill(
            settings=dataset / "settings/responses.json",
            prompts=dataset / "prompts.parquet",
            complete=dataset / "complete",
            engine=results / "engine.json",
            rank=0,
            alone=True,
        ),
        requests,
        dataset / "raw_responses.jsonl",
    )


def lay_down(url: str, requests: int, in_flight: int, results: Path) -> None:
    """What the workflow gives the worker: settings and tokenized prompts."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import yaml
    from tokenfill.settings import load

    config = {
        "model": "bench",
        "budget": requests * ANSWER_IDS,
        "max_new_tokens": 16384,
        "datasets": {"bench": {"source": "none.jsonl"}},
        "engine": {"servers": [url], "concurrency": in_flight, "adaptive": False},
    }
    settings = load(config, yaml.safe_load((REPOSITORY / "schemas/config.schema.yaml").read_text()), "config")
    (results / "bench/settings").mkdir(parents=True)
    (results / "bench/settings/responses.json").write_text(json.dumps(settings.datasets["bench"].responses))
    (results / "engine.json").write_text(json.dumps(settings.engine))
    rows = prompts(requests + in_flight)
    facts = {"v": 1, "content": {"tokenizer": "0", "template": "0"}, "vocab_size": VOCAB, "stop_token_ids": [EOS]}
    facts |= {"think_open": False, "prompts": len(rows)}
    hashes = [sha256(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest()[:16] for ids in rows]
    columns = {
        "id": pa.array([str(n) for n in range(len(rows))]),
        "turn": pa.array([0] * len(rows), pa.int32()),
        "messages": pa.array(["[]"] * len(rows)),
        "tools": pa.array([None] * len(rows), pa.string()),
        "input_ids": pa.array(rows, pa.list_(pa.int32())),
        "prompt_hash": pa.array(hashes),
        "source_row": pa.array(range(len(rows)), pa.int64()),
    }
    table = pa.table(columns).replace_schema_metadata({"tokenfill": json.dumps(facts)})
    pq.write_table(table, results / "bench/prompts.parquet", row_group_size=4000)


def measure(run, requests: int, journal: Path) -> None:
    """Run a client and print what it used, as JSON on the last line."""
    cpu, start = cpu_seconds(), time.monotonic()
    run()
    cpu, took = cpu_seconds() - cpu, time.monotonic() - start
    with journal.open("rb") as file:
        lines = sum(1 for _ in file)
    if not requests <= lines <= 1.2 * requests:
        raise SystemExit(f"{journal} has {lines} lines for {requests} requests")
    print(json.dumps({"cpu_ms": cpu / lines * 1000, "per_second": lines / took, "requests": lines}))


def run_client(name: str, url: str, requests: int, in_flight: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--client", name, url, str(requests), str(in_flight), folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the client '{name}' ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--requests", type=int, default=20_000)
    arguments.add_argument("--in-flight", type=int, nargs="+", default=[256, 2048])
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--client", nargs=5, help=argparse.SUPPRESS)
    arguments.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.serve:
        return asyncio.run(serve())
    if given.client:
        name, url, requests, in_flight, folder = given.client
        return {"bare": bare, "worker": worker}[name](url, int(requests), int(in_flight), Path(folder))
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip()
        print(f"{given.requests} requests of {PROMPT_IDS} ids, {ANSWER_IDS} ids back after {SECONDS * 1000:.0f} ms,")
        print(f"medians of {given.repeats} runs each, taken in turn, on {os.cpu_count()} cores")
        print(f"{'in flight':>9} {'bare ms CPU':>12} {'worker ms CPU':>14} {'ratio':>6} {'bare/s':>8} {'worker/s':>9}")
        for in_flight in given.in_flight:
            seen = {"bare": [], "worker": []}
            for _ in range(given.repeats):
                for name, results in seen.items():
                    results.append(run_client(name, url, given.requests, in_flight))
            cpu = {name: statistics.median(run["cpu_ms"] for run in results) for name, results in seen.items()}
            speed = {name: statistics.median(run["per_second"] for run in results) for name, results in seen.items()}
            ratio = cpu["worker"] / cpu["bare"]
            print(
                f"{in_flight:>9} {cpu['bare']:>12.3f} {cpu['worker']:>14.3f} {ratio:>6.2f} {speed['bare']:>8.0f} "
                f"{speed['worker']:>9.0f}"
            )
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
