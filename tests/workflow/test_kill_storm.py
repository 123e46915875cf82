"""The real command, killed again and again in every way while the servers misbehave, until it is done."""

import contextlib
import json
import os
import random
import signal
import time

import pytest
from scripted_server import ThreadedServer

KILLS = int(os.environ.get("TOKENFILL_KILLS", "25"))
SEED = int(os.environ.get("TOKENFILL_KILL_SEED", "1"))
FAULTS = [
    {"when": {"chance": 0.03}, "do": {"status": 503}},
    {"when": {"chance": 0.01}, "do": {"status": 429, "retry_after": 0.2}},
    {"when": {"chance": 0.01}, "do": {"status": 500}},
    {"when": {"chance": 0.02}, "do": {"fault": "reset"}},
    {"when": {"chance": 0.02}, "do": {"fault": "abort"}},
    {"when": {"chance": 0.01}, "do": {"fault": "empty"}},
    {"when": {"chance": 0.01}, "do": {"fault": "cut"}},
]
SCRIPT = {
    "length": {"lognormal": {"mean": 60, "sigma": 0.9, "cap": 400}},
    "rate": 60,
    "capacity": 16,
    "faults": FAULTS,
}


def kill_somehow(project, process, dice) -> str:
    """End the run in one of the ways that happen to people; the name of the way."""
    workers = project.workers()
    ways = ["int", "term", "kill snakemake", "kill all"] + (["kill worker", "int twice"] if workers else [])
    way = dice.choice(ways)
    if way == "int":
        os.killpg(process.pid, signal.SIGINT)
    elif way == "int twice":
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
    elif way == "term":
        os.killpg(process.pid, signal.SIGTERM)
    elif way == "kill worker":
        os.kill(dice.choice(workers), signal.SIGKILL)
        process.send_signal(signal.SIGTERM)
    elif way == "kill snakemake":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    return way


def whole_lines(project, dataset) -> list[bytes]:
    """The lines that the worker wrote whole."""
    path = project.path(f"results/{dataset}/raw_responses.jsonl")
    raw = path.read_bytes() if path.exists() else b""
    return [line for line in raw.split(b"\n") if line.startswith(b'{"v":1,"id"') and line.endswith(b"}")]


def is_full(project, dataset, budget) -> bool:
    """Whether nothing will open its journal again."""
    return project.path(f"results/{dataset}/complete").exists() and project.complete(dataset)["budget"] == budget


@pytest.mark.storm
def test_nothing_is_lost_and_nothing_doubled_however_often_it_is_killed(new):
    dice = random.Random(SEED)
    with ThreadedServer(SCRIPT) as server:
        budget = 8000
        new.configure(
            budget=budget,
            max_new_tokens=400,
            samples_per_prompt=20,
            datasets={"chat": {"source": "chat.jsonl"}, "code": {"source": "code.jsonl"}},
            engine={
                "servers": [server.url],
                "concurrency": 8,
                "part_tokens": 50,
                "drain_patience": "1s",
                "outage_patience": "60s",
            },
        )
        seen = {"chat": [], "code": []}
        for number in range(KILLS):
            process = new.start()
            if dice.random() < 0.8:  # a journal that grows before the blow falls
                before = sum(len(whole_lines(new, name)) for name in seen)
                new.wait_for(
                    lambda before=before, process=process: (
                        sum(len(whole_lines(new, name)) for name in seen) > before or process.poll() is not None
                    )
                )
            time.sleep(dice.uniform(0, 2))
            server.update(health=503 if dice.random() < 0.2 else 200)
            with contextlib.suppress(ProcessLookupError):  # done before the blow fell
                kill_somehow(new, process, dice)
            if process.wait(90) == 0:
                budget += 2000
                new.configure(budget=budget)
            new.wait_for(lambda: not new.workers(), 90)  # one whose snakemake is gone ends by itself
            server.update(health=200)
            for name, lines in seen.items():
                now = whole_lines(new, name)
                assert now[: len(lines)] == lines, f"kill {number} changed lines of {name}"
                seen[name] = now
                path = new.path(f"results/{name}/raw_responses.jsonl")
                if path.exists() and not is_full(new, name, budget) and dice.random() < 0.3:
                    with path.open("ab") as journal:  # what a power cut leaves of a run
                        journal.write(dice.choice([b'{"id": "chat-1", "prom', b"\0" * 512, b'{"v": 1}\n\n']))
            new.run("--unlock")
        new.run(timeout=300)
        answered = {tuple(map(entry.get, ("prompt", "position", "answer_len"))) for entry in server.log}

    for name, lines in seen.items():
        assert whole_lines(new, name)[: len(lines)] == lines
        assert new.doubled(name) == []
        journal = [json.loads(line) for line in new.path(f"results/{name}/raw_responses.jsonl").open("rb")]
        certified = new.complete(name)
        assert certified["tokens"] >= certified["budget"]
        ended = {key_of(line) for line in journal if line["finish_reason"] != "part"}
        counted = [line for line in journal if key_of(line) in ended]
        assert certified["tokens"] == sum(line["output_tokens"] for line in counted)
        assert all(line["output_tokens"] == len(line["output_ids"]) for line in journal)
        assert_parts_are_in_order(journal)
        # Every line is an answer that the server gave to that prompt from that position on.
        positions: dict = {}
        for line in journal:
            position = positions.get(key_of(line), 0)
            assert (line["prompt_hash"], position, line["output_tokens"]) in answered
            positions[key_of(line)] = position + line["output_tokens"]
        records = new.records(name)
        assert len(records) == certified["responses"]
        assert sum(sum(record["loss_mask"]) for record in records) == certified["tokens"]


def key_of(line) -> tuple:
    return line["id"], line["prompt_hash"], line["sample"], line["turn"]


def assert_parts_are_in_order(journal) -> None:
    parts: dict = {}
    for line in journal:
        assert line["part"] == parts.get(key_of(line), 0)
        parts[key_of(line)] = line["part"] + 1
