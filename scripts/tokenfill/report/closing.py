"""The last lines of a run: what was filled, what failed and why. Read from results/ and logs/ alone."""

from collections.abc import Iterable
from pathlib import Path

from tokenfill.adapter import last_sentence
from tokenfill.quantities import shown_count
from tokenfill.report.status import RESULTS, Standing, standing

LOGS = Path("logs")


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
    """One line for each job that failed since `since` (seconds of the epoch), then how to go on."""
    rows = [standing(RESULTS / name) for name in names]
    failed = [f"{log.stem}: {sentence}" for log in logs_since(since) if (sentence := last_sentence(log))]
    told = {line.partition(":")[0] for line in failed}
    killed = [
        f"{row.dataset}: not finished, and no reason was left; see {LOGS}/*/{row.dataset}.log"
        for row in rows
        if row.state not in ("complete", "exhausted") and row.dataset not in told and not failed
    ]
    done = sum(row.state in ("complete", "exhausted") for row in rows)
    go_on = f"{done} of {len(rows)} datasets are done; what was answered is kept, and the same command goes on"
    return [*(exhausted(row) for row in rows if row.state == "exhausted"), go_on, *killed, *failed]


def exhausted(row: Standing) -> str:
    """The line on a dataset whose prompts were too few for its budget."""
    return f"{row}; its prompts are exhausted, so add prompts, raise samples_per_prompt or lower the budget"


def logs_since(since: float) -> list[Path]:
    """The logs of jobs that ran since then, oldest first."""
    logs = [log for log in LOGS.rglob("*.log") if log.stat().st_mtime >= since]
    return sorted(logs, key=lambda log: log.stat().st_mtime)
