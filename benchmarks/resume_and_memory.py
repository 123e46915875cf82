"""How soon the worker asks, with how much memory, and how fast it resumes, as prompts and answers grow in number.

    python benchmarks/resume_and_memory.py [--prompts 300000 3000000] [--answers 0 20000] [--repeats 1]

Prompts have 500 ids, answers 800. For each number of prompts, and of answers that the journal holds, the worker runs
until it has had 100 more. Seconds are from the call that fills the dataset to its first request. Beside them stands
what it takes to parse the same journal line by line and do nothing with it, in the same process, just before. Memory is
the peak of the worker's process; what its imports alone take up stands beside it.
"""

import argparse
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

from client_cost import ANSWER_IDS, EOS, PROMPT_IDS, REPOSITORY, VOCAB

MORE = 100  # answers asked in each run
IN_FLIGHT = 32


# what lies in the folder


def prompt(number: int, base: list[int]) -> list[int]:
    return [*base[:-2], number // 1000, number % 1000]


def hash_of(ids: list[int]) -> str:
    return sha256(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest()[:16]


def lay_down_prompts(path: Path, count: int) -> None:
    """The table of prompts as tokenize_prompts writes it."""
    import numpy as np
    from tokenfill.prompts.table import PromptTable, prompt_hash

    dice = random.Random(1)
    base = [dice.randrange(EOS) for _ in range(PROMPT_IDS)]
    facts = {"v": 1, "content": {"tokenizer": "0", "template": "0"}, "vocab_size": VOCAB, "stop_token_ids": [EOS]}
    path.parent.mkdir(parents=True, exist_ok=True)
    with PromptTable(path) as table:
        for number in range(count):
            ids = np.array(prompt(number, base), dtype=np.int32)
            table.append(str(number), 0, "[]", None, ids, prompt_hash(ids), number)
        table.finish(facts)


def lay_down_journal(path: Path, count: int, settings: str, url: str) -> None:
    """Answers to the first prompts, as the worker writes them."""
    import orjson

    dice = random.Random(1)
    base = [dice.randrange(EOS) for _ in range(PROMPT_IDS)]
    answers = [[*(dice.randrange(EOS) for _ in range(ANSWER_IDS - 1)), EOS] for _ in range(64)]
    text = "".join(f"{dice.choice(['river', 'and', 'the', 'cat', 'of'])} " for _ in range(ANSWER_IDS))
    with path.open("wb") as file:
        for number in range(count):
            ids = prompt(number, base)
            line = {"v": 1, "id": str(number), "prompt_hash": hash_of(ids), "sample": 0, "turn": 0, "part": 0}
            line |= {"settings": settings, "output_ids": answers[number % 64], "text": text, "finish_reason": "stop"}
            line |= {"flags": [], "prompt_tokens": PROMPT_IDS, "output_tokens": ANSWER_IDS, "max_new_tokens": 16384}
            line |= {"seed": None, "prompt_ids": None, "server": url, "model": "bench", "attempt": 1}
            file.write(orjson.dumps(line | {"started": 1.0 + number, "seconds": 0.05}) + b"\n")


def lay_down_settings(results: Path, url: str, budget: int) -> str:
    """The settings files; returns the digest that lines made with them carry."""
    import yaml
    from tokenfill.settings import digest, load

    config = {
        "model": "bench",
        "budget": budget,
        "datasets": {"bench": {"source": "none.jsonl"}},
        "engine": {"servers": [url], "concurrency": IN_FLIGHT, "adaptive": False},
    }
    settings = load(config, yaml.safe_load((REPOSITORY / "schemas/config.schema.yaml").read_text()), "config")
    responses = settings.datasets["bench"].responses
    (results / "bench/settings").mkdir(parents=True, exist_ok=True)
    (results / "bench/settings/responses.json").write_text(json.dumps(responses))
    (results / "engine.json").write_text(json.dumps(settings.engine))
    return digest({"identity": responses["identity"], "content": {"tokenizer": "0", "template": "0"}})


# one run


def megabytes() -> float:
    """The peak of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_worker(results: Path) -> None:
    """Parse the journal and do nothing with it; then fill the dataset. Prints what both took, wall and CPU seconds."""
    import orjson
    from tokenfill.responses.client import Client
    from tokenfill.responses.worker import fill

    first: list[tuple[float, float]] = []
    ask = Client.ask

    async def ask_and_note(*arguments):
        first.append(clocks())
        return await ask(*arguments)

    Client.ask = ask_and_note
    dataset = results / "bench"
    journal = dataset / "raw_responses.jsonl"
    imported, began = megabytes(), clocks()
    if journal.exists():
        with journal.open("rb") as file:
            for line in file:
                orjson.loads(line)
    parsed = clocks()
    fill(
        settings=dataset / "settings/responses.json",
        prompts=dataset / "prompts.parquet",
        complete=dataset / "complete",
        engine=results / "engine.json",
        rank=0,
        alone=True,
    )
    seconds = {"parse": parsed[0] - began[0], "parse_cpu": parsed[1] - began[1]}
    seconds |= {"first": first[0][0] - parsed[0], "first_cpu": first[0][1] - parsed[1]}
    print(json.dumps(seconds | {"imported": imported, "peak": megabytes()}))


def clocks() -> tuple[float, float]:
    """Wall and CPU seconds."""
    return time.monotonic(), time.process_time()


def measure(folder: Path, url: str, answers: int) -> dict:
    results = folder / "results"
    settings = lay_down_settings(results, url, (answers + MORE) * ANSWER_IDS)
    for path in (results / "bench").glob("*"):
        if path.is_file() and path.name != "prompts.parquet":
            path.unlink()
    if answers:
        lay_down_journal(results / "bench/raw_responses.jsonl", answers, settings, url)
    command = [sys.executable, __file__, "--run", str(results)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the worker ended with {done.returncode}:\n{done.stderr[-3000:]}")
    complete = json.loads((results / "bench/complete").read_text())
    if complete["responses"] < answers + MORE:
        raise SystemExit(f"the worker counts {complete['responses']} answers where {answers + MORE} are due")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--prompts", type=int, nargs="+", default=[300_000])
    arguments.add_argument("--answers", type=int, nargs="+", default=[0, 20_000])
    arguments.add_argument("--repeats", type=int, default=1)
    arguments.add_argument("--run", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.run:
        return run_worker(Path(given.run))
    print(f"prompts of {PROMPT_IDS} ids, answers of {ANSWER_IDS}, medians of {given.repeats}, {os.cpu_count()} cores")
    print(f"{'prompts':>9} {'answers':>9} {'first request':>19} {'bare parsing':>19} {'peak':>7} {'imports':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder, command = Path(name), [sys.executable, str(REPOSITORY / "benchmarks/client_cost.py"), "--serve"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            url = server.stdout.readline().strip()
            for prompts in given.prompts:
                lay_down_prompts(folder / "results/bench/prompts.parquet", prompts)
                for answers in given.answers:
                    runs = [measure(folder, url, answers) for _ in range(given.repeats)]
                    seen = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
                    print(
                        f"{prompts:>9} {answers:>9} {seen['first']:>6.2f} s ({seen['first_cpu']:>5.2f} CPU) "
                        f"{seen['parse']:>6.2f} s ({seen['parse_cpu']:>5.2f} CPU) {seen['peak']:>4.0f} MB "
                        f"{seen['imported']:>5.0f} MB",
                        flush=True,
                    )
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
