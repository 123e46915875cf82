"""Where every dataset stands, read from results/ alone: no config, no Snakemake, no lock, nothing written."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from tokenfill.quantities import shown_count, shown_duration
from tokenfill.responses.budget import is_met

RESULTS = Path("results")


@dataclass(frozen=True)
class Standing:
    """One dataset: `state` is complete, exhausted, running, stopped or new; `tokens` and `responses` count.

    `is_at_most`: the journal is shorter now than it was when they were counted.
    """

    dataset: str
    state: str
    tokens: int
    budget: int | None
    responses: int
    failed: int = 0
    detail: str = ""
    is_at_most: bool = False

    def __str__(self) -> str:
        budget = shown_count(self.budget) if self.budget else "unknown"
        counts = f"{shown_count(self.tokens)} of {budget} tokens, {self.responses:,} responses"
        doubt = " at most, since its journal is shorter now" if self.is_at_most else ""
        return f"{self.dataset}: {counts}{doubt}"


class Standings:
    """What a rule's message shows of a dataset: `{STANDINGS:name}`, read anew at every use."""

    def __format__(self, dataset: str) -> str:
        return str(standing(RESULTS / dataset))


def standing(folder: Path) -> Standing:
    """Where the dataset in `folder` stands, by its `complete`, else by its `progress.json`, else at the start."""
    asked = _read(folder / "settings/responses.json")
    budget = asked.get("budget") if isinstance(asked.get("budget"), int) else None
    complete, progress = _read(folder / "complete"), _read(folder / "progress.json")
    source = complete or progress
    tokens, responses = _count(source, "tokens"), _count(source, "responses")
    shrank = _shrank(folder, source)
    if complete:
        failed = complete.get("failed") if isinstance(complete.get("failed"), dict) else {}
        reason = complete.get("reason")
        state = "exhausted" if reason == "prompts_exhausted" else "complete"
        if state == "complete" and budget is not None and not is_met(tokens, budget):
            state = "stopped"  # the budget was raised since
        return Standing(folder.name, state, tokens, budget, responses, sum(failed.values()), is_at_most=shrank)
    if progress:
        state = "running" if _is_fresh(folder / "progress.json", progress) else "stopped"
        failures = _count(progress, "failures")
        return Standing(folder.name, state, tokens, budget, responses, failures, _speed(progress, state), shrank)
    return Standing(folder.name, "new", 0, budget, 0)


def table(results: Path = RESULTS) -> str:
    """All datasets of `results`, one line each, and a sum; what to do if there are none."""
    folders = sorted(path.parent for path in results.glob("*/settings"))
    if not folders:
        return f"{results}: no dataset yet; run snakemake first"
    rows = [standing(folder) for folder in folders]
    cells = [("dataset", "state", "tokens", "budget", "done", "responses", "failed", "")]
    cells += [_cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = {2, 3, 4, 5, 6}
    lines = (
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: Standing) -> tuple[str, ...]:
    budget = shown_count(row.budget) if row.budget else "?"
    done = f"{row.tokens * 100 // row.budget} %" if row.budget else "?"
    tokens = shown_count(row.tokens)
    return row.dataset, row.state, tokens, budget, done, f"{row.responses:,}", f"{row.failed:,}", row.detail


def _speed(progress: dict, state: str) -> str:
    if state != "running":
        return "run snakemake to go on"
    speed, left = progress.get("tokens_per_second"), progress.get("seconds_left")
    parts = [f"{progress.get('in_flight', 0)} in flight"]
    parts += [f"{shown_count(int(speed))} tokens/s"] if isinstance(speed, int | float) else []
    parts += [f"{shown_duration(left)} left"] if isinstance(left, int | float) else []
    return ", ".join(parts)


def _is_fresh(path: Path, progress: dict) -> bool:
    """Whether a worker wrote this lately: it does so every few seconds until it stops."""
    return progress.get("state") not in ("stopped", "complete") and time.time() - path.stat().st_mtime < 30


def _shrank(folder: Path, source: dict) -> bool:
    """Whether a journal is shorter than it was when `source` was written."""
    sizes = source.get("journal")
    for name, size in sizes.items() if isinstance(sizes, dict) else ():
        path = folder / name
        if isinstance(size, int) and (path.stat().st_size if path.exists() else 0) < size:
            return True
    return False


def _count(source: dict, key: str) -> int:
    return source[key] if isinstance(source.get(key), int) else 0


def _read(path: Path) -> dict:
    """A JSON object, {} where there is none: a status never fails for what a kill left."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
