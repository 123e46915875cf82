"""The last lines of a run: what was filled, what failed and why. Read from results/ and logs/ alone."""

from collections.abc import Iterable
from pathlib import Path

from tokenfill.adapter import last_sentence
from tokenfill.quantities import shown_count
from tokenfill.report.status import RESULTS, Standing, standing

LOGS = Path("logs")
OUTPUTS = {"tokenize_prompts": "prompts.parquet", "generate_responses": "complete", "build_records": "records.jsonl"}


def after_success(names: Iterable[str]) -> list[str]:
    """One line on all datasets, after one for each whose prompts ran out before its budget."""
    rows = [standing(RESULTS / name) for name in names]
    filled = sum(row.state in ("complete", "exhausted") for row in rows)
    tokens, responses = sum(row.tokens for row in rows), sum(row.responses for row in rows)
    return [
        *(exhausted(row) for row in rows if row.state == "exhausted"),
        f"{filled} of {len(rows)} datasets are done: {shown_count(tokens)} tokens in {responses:,} responses",
    ]


def after_error(names: Iterable[str], since: float) -> list[str]:
    """How to go on, then one line for each job that ended badly since `since` (seconds of the epoch)."""
    rows = [standing(RESULTS / name) for name in names]
    done = sum(row.state in ("complete", "exhausted") for row in rows)
    return [
        *(exhausted(row) for row in rows if row.state == "exhausted"),
        f"{done} of {len(rows)} datasets are done; what was answered is kept, and the same command goes on",
        *filter(None, map(bad_end, logs_since(since))),
    ]


def bad_end(log: Path) -> str | None:
    """What a job's log says of its bad end; None if it ended well. A killed job leaves a log and no output."""
    if sentence := last_sentence(log):
        return f"{log.stem}: {sentence.removeprefix(f'{log.stem}: ').removeprefix(f'{log.stem} ')}"
    output = OUTPUTS.get(log.parent.name)
    if output and not (RESULTS / log.stem / output).exists():
        return f"{log.stem}: {log.parent.name} was killed and left no reason; see {log}"
    return None


def exhausted(row: Standing) -> str:
    """The line on a dataset whose prompts were too few for its budget."""
    return f"{row}; its prompts are exhausted, so add prompts, raise samples_per_prompt or lower the budget"


def logs_since(since: float) -> list[Path]:
    """The logs of jobs that ran since then, oldest first."""
    logs = [log for log in LOGS.rglob("*.log") if log.stat().st_mtime >= since]
    return sorted(logs, key=lambda log: log.stat().st_mtime)
