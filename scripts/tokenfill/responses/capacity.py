"""How many requests in flight are good for one server: felt for by its throughput and its refusals. Pure; no clock.

Answers show only when they end, and long ones end late. So a limit is judged by the requests that both began and ended
under it, as many as a quarter of the limit, however long that takes. All running requests share one speed, so the
speed of a few, times all that are in flight, is the server's throughput.
"""

import math
from dataclasses import dataclass

UNTOLD_CAPACITY = 128  # where a server does not say what it can run
GROWTH = 2.0
WORTH = 0.05  # a step is kept if throughput grew by this share of the growth in requests
FIRST_HOLD, LONGEST_HOLD = 4, 64  # judgements until a step that failed is tried again
RECOVERY = 1.25  # growth after a refusal, until close to where it was refused
CLOSE = 0.9


@dataclass
class Limit:
    """The limit on one server's requests in flight, over all workers together.

    `ceiling`: never more. `is_fixed`: always the ceiling.
    """

    ceiling: int
    told: int | None = None
    is_fixed: bool = False

    def __post_init__(self) -> None:
        start = self.ceiling if self.is_fixed else min(self.ceiling, self.told or UNTOLD_CAPACITY)
        self.value = max(1, start)
        self._since = -math.inf
        self._is_binding = False
        self._before: tuple[int, float] | None = None  # (limit, throughput) that the present one must beat
        self._refused_at: int | None = None
        self._hold, self._holds = 0, FIRST_HOLD
        self._clear()

    def _clear(self) -> None:
        self._count, self._tokens, self._seconds = 0, 0, 0.0

    def set_ceiling(self, ceiling: int, is_fixed: bool) -> None:
        """Take up what the user has changed."""
        self.ceiling, self.is_fixed = ceiling, is_fixed
        self.value = max(1, ceiling if is_fixed else min(self.value, ceiling))

    def binds(self) -> None:
        """A request could not be sent because of this limit."""
        self._is_binding = True

    def ended(self, now: float, began: float, tokens: int, seconds: float) -> None:
        """An answer of `tokens` ended at `now` after `seconds`; `began` on the same clock as `now`."""
        if self.is_fixed or began < self._since:
            return
        self._count += 1
        self._tokens += tokens
        self._seconds += seconds
        if self._count >= max(8, self.value // 4) and self._is_binding:
            self._judge(now, self.value * self._tokens / max(self._seconds, 1e-9))

    def refused(self, now: float, in_flight: int) -> None:
        """The server was too busy for a request; `in_flight` others were left on it."""
        if self.is_fixed or in_flight >= self.value:
            return
        self._refused_at = max(self._refused_at or 0, self.value)
        self._set(now, max(1, in_flight))

    def _judge(self, now: float, throughput: float) -> None:
        if self._refused_at is not None:
            self._recover(now)
        elif self._before and throughput < self._before[1] * (1 + WORTH * (self.value / self._before[0] - 1)):
            self._hold, self._holds = self._holds, min(LONGEST_HOLD, self._holds * 2)
            back_to = self._before[0]
            self._before = None
            self._set(now, back_to)
        elif self._hold:
            self._hold -= 1
            self._set(now, self.value)
        elif self.value < self.ceiling:
            self._before = (self.value, throughput)
            self._set(now, math.ceil(self.value * GROWTH))
        else:
            self._set(now, self.value)

    def _recover(self, now: float) -> None:
        """Back up quickly, then one by one near the limit that was refused, and past it as if it were new."""
        if self.value >= self._refused_at:
            self._refused_at = None
            self._before = None
        near = self._refused_at is not None and self.value >= CLOSE * self._refused_at
        self._set(now, self.value + 1 if near else math.ceil(self.value * RECOVERY))

    def _set(self, now: float, value: int) -> None:
        self.value = min(self.ceiling, value)
        self._since = now
        self._is_binding = False
        self._clear()
