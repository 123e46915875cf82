"""How a run shows where it stands: a bar or plain lines for people, `progress.json` for dry run and status."""

import contextlib
import sys
import time
from collections import deque
from pathlib import Path

from tqdm import tqdm

from tokenfill.errors import TemporaryFailure
from tokenfill.quantities import shown_count, shown_duration
from tokenfill.responses.dataset import Dataset, write_json
from tokenfill.responses.journal import NAME

SPEED_OVER_SECONDS = 120
PLAIN_LINE_EVERY = 30.0
FILE_EVERY = 3.0


class Progress:
    """Shows one dataset's way to its budget. `alone`: whether no other dataset shares this terminal."""

    def __init__(self, dataset: Dataset, folder: Path, alone: bool, clock=time.monotonic):
        self._dataset = dataset
        self._path = folder / "progress.json"
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), dataset.tally.tokens)])
        self._next_line = clock() + 5.0
        self._next_file = 0.0
        self._bar = None
        if alone and sys.stderr.isatty():
            self._bar = tqdm(
                total=dataset.budget,
                initial=dataset.tally.tokens,
                desc=dataset.name,
                unit="tok",
                unit_scale=True,
                dynamic_ncols=True,
            )

    def say(self, sentence: str) -> None:
        """A line of its own, above the bar if there is one."""
        tqdm.write(f"{self._dataset.name}: {sentence}", file=sys.stderr)
        sys.stderr.flush()

    def tokens_per_second(self) -> float:
        """Counted tokens per second over the last two minutes."""
        (then, tokens), now = self._seen[0], self._clock()
        return (self._dataset.tally.tokens - tokens) / (now - then) if now > then else 0.0

    def show(self, state: str, in_flight: int, failures: int) -> None:
        """Bring all views up to date; call it about once a second."""
        now, tally, budget = self._clock(), self._dataset.tally, self._dataset.budget
        self._seen.append((now, tally.tokens))
        while now - self._seen[0][0] > SPEED_OVER_SECONDS:
            self._seen.popleft()
        speed = self.tokens_per_second()
        left = max(0, budget - tally.tokens) / speed if speed > 0 else None
        if self._bar is not None:
            self._bar.total = budget
            self._bar.set_postfix_str(f"{in_flight} in flight, {failures} failures, {state}", refresh=False)
            self._bar.update(tally.tokens - self._bar.n)
        elif now >= self._next_line:
            self._next_line = now + PLAIN_LINE_EVERY
            self.say(self.sentence(in_flight, failures, speed, left))
        if now >= self._next_file or state in ("complete", "stopped"):
            self._next_file = now + FILE_EVERY
            content = {
                "dataset": self._dataset.name,
                "state": state,
                "tokens": tally.tokens,
                "budget": budget,
                "responses": tally.responses,
                "unfinished": tally.unfinished,
                "in_flight": in_flight,
                "failures": failures,
                "tokens_per_second": round(speed, 1),
                "seconds_left": None if left is None else round(left),
                "journal": {NAME: self._dataset.journal.size},
                "updated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            with contextlib.suppress(TemporaryFailure):  # for eyes only: a run does not end for want of it
                write_json(self._path, content)

    def sentence(self, in_flight: int, failures: int, speed: float, left: float | None) -> str:
        """The plain progress line."""
        tally, budget = self._dataset.tally, self._dataset.budget
        left_in_words = "an unknown time" if left is None else shown_duration(left)
        done = f"{shown_count(tally.tokens)} of {shown_count(budget)} tokens"
        share = min(100.0, 100 * tally.tokens / budget)
        rate = f"{shown_count(round(speed))} tokens/s, {in_flight} in flight, {failures} failures"
        return f"{done} ({share:.1f} %), {tally.responses} responses, {rate}, {left_in_words} left"

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.close()
