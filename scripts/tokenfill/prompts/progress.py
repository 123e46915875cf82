"""How far a long loop is: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Callable

from tqdm import tqdm

_EVERY = 30.0  # seconds between plain lines


class Progress:
    """A counter that shows itself. `total` None where it is not known before the end."""

    def __init__(self, title: str, unit: str, total: int | None = None, clock: Callable[[], float] = time.monotonic):
        self._title, self._unit, self._total, self._clock = title, unit, total, clock
        self._done, self._said = 0, clock()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, desc=title, unit=f" {unit}", unit_scale=True, leave=False, mininterval=0.5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1) -> None:
        if self._bar is not None:
            self._bar.update(count)
            return
        self._done += count
        if self._clock() - self._said >= _EVERY:
            self._said = self._clock()
            of = f" of {self._total:,}" if self._total is not None else ""
            print(f"{self._title}: {self._done:,}{of} {self._unit}", file=sys.stderr, flush=True)
