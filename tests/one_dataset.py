"""One dataset and the worker that fills it, without Snakemake: laid down, filled in this process or in one of its own.

python tests/one_dataset.py FOLDER   fills the dataset that was laid down in FOLDER, as the rule's script does
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from tiny_tokenizer import ASSISTANT_HEADER, ENDOFTEXT, IM_END, IM_START, VOCAB_SIZE
from tokenfill.adapter import one_sentence
from tokenfill.responses.worker import fill
from tokenfill.settings import load

ROOT = Path(__file__).parents[1]
SCHEMA = yaml.safe_load((ROOT / "schemas/config.schema.yaml").read_text())
NAME = "forum"


def prompt(number: int, length: int = 0) -> list[int]:
    """Ids of a prompt, those of each number different; at least `length` of them."""
    words = b"user\nWhat is %d plus one?" % number
    return [IM_START, *words, *[32] * (length - len(words) - 1 - len(ASSISTANT_HEADER)), *ASSISTANT_HEADER]


def prompt_hash(ids: list[int]) -> str:
    return hashlib.sha256(array("i", ids).tobytes()).hexdigest()[:16]


class OneDataset:
    """A folder with prompts and settings; `configure` lays them down again as `snakemake -n` would."""

    def __init__(self, folder: Path, urls, prompts=40, **config):
        """`urls`: of the servers. `prompts`: how many, or the ids of each."""
        self.folder, self.results = folder, folder / "results" / NAME
        self.complete_path = self.results / "complete"
        self.journal_path = self.results / "raw_responses.jsonl"
        self.config: dict = {
            "model": "tiny",
            "budget": 200,
            "max_new_tokens": 200,
            "datasets": {NAME: {"source": "forum.jsonl"}},
            "engine": {"api": "sglang", "servers": list(urls), "concurrency": 4, "outage_patience": "20s"},
        }
        (self.results / "settings").mkdir(parents=True)
        self.lay_prompts([prompt(n) for n in range(prompts)] if isinstance(prompts, int) else prompts)
        self.configure(**config)

    def lay_prompts(self, prompts: list[list[int]], content: str = "a") -> None:
        """Write prompts.parquet. `content`: stands for the tokenizer's digest."""
        facts = {
            "content": {"tokenizer": content, "template": content},
            "vocab_size": VOCAB_SIZE,
            "stop_token_ids": [IM_END, ENDOFTEXT],
        }
        rows = pa.table(
            {
                "id": [f"row-{n}" for n in range(len(prompts))],
                "turn": pa.array([0] * len(prompts), pa.int32()),
                "prompt_hash": [prompt_hash(ids) for ids in prompts],
                "input_ids": pa.array(prompts, pa.list_(pa.int32())),
            }
        ).replace_schema_metadata({"tokenfill": json.dumps(facts)})
        pq.write_table(rows, self.results / "prompts.parquet", row_group_size=16)

    def configure(self, **changes) -> None:
        """Change keys of the config. A dict is laid over the one that is there."""
        for key, value in changes.items():
            self.config[key] = self.config[key] | value if isinstance(self.config.get(key), dict) else value
        settings = load(self.config, SCHEMA, "config.yaml")
        (self.results / "settings/responses.json").write_text(json.dumps(settings.datasets[NAME].responses))
        (self.folder / "results/engine.json").write_text(json.dumps(settings.engine))

    def fill(self) -> dict:
        """Fill it in this process; what `complete` says."""
        fill(
            settings=self.results / "settings/responses.json",
            prompts=self.results / "prompts.parquet",
            complete=self.complete_path,
            engine=self.folder / "results/engine.json",
            rank=0,
            alone=False,
        )
        return self.complete()

    def start(self, *before: str) -> subprocess.Popen:
        """Fill it in a process of its own. `before`: words in front of the command, as of a shell."""
        return subprocess.Popen(
            [*before, sys.executable, __file__, str(self.folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(ROOT / "tests")])},
            stderr=subprocess.PIPE,
            text=True,
        )

    def complete(self) -> dict:
        return json.loads(self.complete_path.read_bytes())

    def lines(self) -> list[dict]:
        """The journal, each line of which must be whole."""
        raw = self.journal_path.read_bytes() if self.journal_path.exists() else b""
        assert raw.endswith(b"\n") or not raw
        return [json.loads(line) for line in raw.split(b"\n")[:-1]]

    def write(self, lines: list[dict]) -> None:
        """Put other lines in the journal's place."""
        self.journal_path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def answers(self) -> dict[tuple, list[int]]:
        """(id, sample) → ids of the whole answer, parts joined; no key of the journal may stand twice."""
        keys = Counter((line["id"], line["sample"], line["part"]) for line in self.lines())
        assert max(keys.values(), default=1) == 1
        answers: dict[tuple, list[int]] = {}
        for line in sorted(self.lines(), key=lambda line: line["part"]):
            answers.setdefault((line["id"], line["sample"]), []).extend(line["output_ids"])
        return answers

    def failures(self) -> list[dict]:
        path = self.results / "failures.jsonl"
        return [json.loads(line) for line in path.open()] if path.exists() else []


def meanwhile(condition, action, seconds: float = 20) -> threading.Thread:
    """Wait for `condition()` in a thread, then do `action()`. Join it, so that a wait in vain fails the test."""

    def watch() -> None:
        wait_for(condition, seconds)
        action()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def wait_for(condition, seconds: float = 20) -> None:
    """Wait until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.01)


if __name__ == "__main__":
    given = Path(sys.argv[1])
    with one_sentence(str(given / "log.txt")):
        results = given / "results" / NAME
        fill(
            settings=results / "settings/responses.json",
            prompts=results / "prompts.parquet",
            complete=results / "complete",
            engine=given / "results/engine.json",
            rank=0,
            alone=False,
        )
