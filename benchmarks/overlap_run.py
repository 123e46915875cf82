"""How full the server stays while ten datasets are filled: the real command on a scripted server, scaled down.

    python benchmarks/overlap_run.py [--at-once 1 3] [--datasets 10] [--in-flight 64] [--waves 9] [--scale 10]

The server's speed goes as n / (n + k) of its best with n requests in flight, k = 239/256 of the limit. The datasets'
mean answers are 1,500 to 8,000 tokens over `scale`, log-normal; each budget is `waves` times what is in flight. Ideal
is the server's speed at the limit from the first request to the last answer; busy is the share of the places in use
from the first request to the last.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "scripts")]

from tiny_tokenizer import make_model_folder  # noqa: E402

MEANS = [1500, 2000, 8000, 3000, 2500, 6000, 4000, 1800, 5000, 3500]


def lay_down(folder: Path, given, at_once: int, url: str, budget: int) -> None:
    """A model folder, prompts that name their dataset by one capital letter, and the config."""
    make_model_folder(folder / "model")
    datasets = {}
    for n in range(given.datasets):
        letter = chr(ord("A") + n)
        count = int(2 * budget * given.scale / MEANS[n % 10]) + 2 * given.in_flight
        rows = (
            {"id": f"{letter}{i}", "messages": [{"role": "user", "content": f"{letter} {i}"}]} for i in range(count)
        )
        (folder / f"{letter}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        datasets[f"D{n}"] = {"source": f"{letter}.jsonl"}
    engine = {"servers": [url], "concurrency": given.in_flight, "datasets_at_once": at_once}
    engine["part_tokens"] = 4096 // given.scale
    config = {"model": "model", "budget": budget, "max_new_tokens": 16384 // given.scale, "datasets": datasets}
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "engine": engine}, sort_keys=False))


def length(mean: int, scale: int) -> dict:
    return {"lognormal": {"mean": mean / scale, "sigma": 0.9, "cap": 16384 // scale}}


def run(given, at_once: int) -> dict:
    """One run of the real command; what the server saw of it."""
    half_at = given.in_flight * 239 / 256
    mean = sum(MEANS[n % 10] for n in range(given.datasets)) / given.datasets / given.scale
    budget = int(given.waves * given.in_flight * mean)
    ideal = given.datasets * budget / given.seconds
    script = {
        "rate": {"total": ideal * (given.in_flight + half_at) / given.in_flight, "half_at": half_at},
        "delay": 0.0,
        "capacity": given.in_flight,
        "length_of_id": {str(ord("A") + n): length(MEANS[n % 10], given.scale) for n in range(given.datasets)},
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        command = [sys.executable, str(REPOSITORY / "tests/scripted_server.py"), "--script", json.dumps(script)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            url = server.stdout.readline().strip()
            lay_down(folder, given, at_once, url, budget)
            command = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile")]
            command += ["--workflow-profile", str(REPOSITORY / "profiles/default"), "--directory", str(folder)]
            if subprocess.run(
                [*command, "--cores", "2", "--until", "tokenize_prompts"], capture_output=True
            ).returncode:
                raise SystemExit("the prompts could not be made")
            started = time.time()
            done = subprocess.run([*command, "--cores", "1"], capture_output=True, text=True, cwd=folder)
            if done.returncode:
                raise SystemExit(f"snakemake ended with {done.returncode}:\n{done.stderr[-4000:]}")
            with urllib.request.urlopen(f"{url}/_log") as page:
                seen = summary(json.load(page), given.in_flight, ideal)
            sentinels = [json.loads((folder / f"results/D{n}/complete").read_text()) for n in range(given.datasets)]
            over = sum(complete["tokens"] for complete in sentinels) / (budget * given.datasets) - 1
            return {**seen, "over": over, "wall": time.time() - started}
        finally:
            server.terminate()
            server.wait()


def summary(log: list[dict], in_flight: int, ideal: float) -> dict:
    """Share of the ideal throughput, and of the places in use until the last request was sent."""
    first, last = min(entry["t"] for entry in log), max(entry["t"] for entry in log)
    end = max(entry["t"] + entry["seconds"] for entry in log)
    busy = sum(min(entry["t"] + entry["seconds"], last) - entry["t"] for entry in log)
    return {
        "share": sum(entry["answer_len"] for entry in log) / (end - first) / ideal,
        "busy": busy / in_flight / (last - first),
        "seconds": end - first,
        "most": max(entry["inflight"] for entry in log),
        "failed": sum(entry["status"] != 200 for entry in log),
        "requests": len(log),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--at-once", type=int, nargs="+", default=[1, 3])
    arguments.add_argument("--datasets", type=int, default=10)
    arguments.add_argument("--in-flight", type=int, default=64)
    arguments.add_argument("--waves", type=float, default=9.0, help="budget over what is in flight")
    arguments.add_argument("--scale", type=int, default=10)
    arguments.add_argument("--seconds", type=float, default=240.0, help="how long the ideal run takes")
    given = arguments.parse_args()
    print(f"{given.datasets} datasets, {given.in_flight} in flight, {given.waves:g} waves each")
    print(f"{'at once':>7} {'share of ideal':>15} {'places busy':>12} {'seconds':>8} {'most':>5} {'over budget':>12}")
    for at_once in given.at_once:
        seen = run(given, at_once)
        print(
            f"{at_once:>7} {seen['share']:>14.1%} {seen['busy']:>12.1%} {seen['seconds']:>8.0f} {seen['most']:>5} "
            f"{seen['over']:>12.2%}",
            flush=True,
        )
        if seen["failed"] or seen["most"] > given.in_flight:
            raise SystemExit(f"{seen['failed']} requests failed, {seen['most']} were in flight")


if __name__ == "__main__":
    main()
