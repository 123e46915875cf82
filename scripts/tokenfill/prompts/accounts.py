"""What became of every row: counts, the file of skipped rows, the table at the end."""

import json
import sys
from array import array
from collections import Counter
from pathlib import Path
from typing import TextIO

import numpy as np

_NOTICES = {
    "system_not_rendered": "prompts without their system text, which the template drops",
    "tools_not_rendered": "prompts without their tools, which the template does not know",
    "special_in_text": "rows whose text spells out special tokens",
    "surrogates": "rows with lone surrogates, replaced by U+FFFD",
    "renamed": "rows that share an id with an earlier row of other content, now known as id#hash",
    "think_open": "prompts that open <think>, so that answers begin inside the thinking",
}


class Accounts:
    """Counts rows, prompts, reasons and notices; writes a line for each row that gave no prompt."""

    def __init__(self, skipped: TextIO, log: TextIO | None = None):
        self._file, self._log = skipped, log
        self.rows, self.limited = 0, 0
        self.skipped, self.notices = Counter(), Counter()
        self.examples: dict[str, str] = {}
        self.lengths = array("I")

    def skip(self, reason: str, *, row: int, row_id: str | None = None, detail: str = "", **place) -> None:
        """Counts a row put aside, and writes its line: source row from 0, id, reason, and where it was."""
        self.skipped[reason] += 1
        self.examples.setdefault(reason, detail[:200])
        line = {"source_row": row, "id": row_id, "reason": reason, "detail": detail[:300]} | place
        self._file.write(json.dumps({key: value for key, value in line.items() if value not in (None, "")}) + "\n")

    def notice(self, name: str) -> None:
        self.notices[name] += 1

    def prompt(self, tokens: int) -> None:
        self.lengths.append(tokens)

    def say(self, text: str) -> None:
        """Prints a line for people, and keeps it in the log."""
        for stream in (sys.stderr, self._log):
            if stream is not None:
                print(text, file=stream, flush=True)

    @property
    def prompt_tokens(self) -> int:
        return sum(self.lengths)

    def table(self, title: str) -> str:
        """The account as text of a few lines."""
        rows = [
            ("rows read", f"{self.rows:,}"),
            ("prompts made", f"{len(self.lengths):,}"),
            ("beyond the limit", f"{self.limited:,}" if self.limited else ""),
            ("skipped", f"{self.skipped.total():,}"),
            *((f"  {reason}", f"{count:,}") for reason, count in self.skipped.most_common()),
            ("prompt tokens", f"{self.prompt_tokens:,}"),
            ("  per prompt", _quantiles(self.lengths)),
        ]
        lines = [f"  {name:<24}{value}" for name, value in rows if value]
        lines += [f"  noticed: {_NOTICES[name]}: {count:,}" for name, count in self.notices.most_common()]
        return "\n".join([title, *lines])


def _quantiles(lengths: array) -> str:
    if not lengths:
        return ""
    low, half, high, top, most = np.percentile(np.asarray(lengths), [0, 50, 90, 99, 100], method="inverted_cdf")
    return f"min {low:,} · median {half:,} · p90 {high:,} · p99 {top:,} · max {most:,}"


def skipped_path(prompts: Path) -> Path:
    """Where the rows that gave no prompt are named, beside the prompts."""
    return prompts.with_name("prompts_skipped.jsonl")
