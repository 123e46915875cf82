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
CREDIT, MOST_CREDIT = 0.1, 3.0  # refusals passed over for each answer, and at most
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
        self._floor, self._floor_since = 0, -math.inf
        self._credit, self._step = 0.0, 1
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
        if self.is_fixed or (began < self._since and self._refused_at is None):
            return
        self._credit = min(MOST_CREDIT, self._credit + CREDIT)
        self._count += 1
        self._tokens += tokens
        self._seconds += seconds
        if self._count >= max(8, self.value // 4) and self._is_binding:
            self._judge(now, self.value * self._tokens / max(self._seconds, 1e-9))

    def refused(self, now: float, began: float, in_flight: int) -> None:
        """The server was too busy for a request that began at `began`; `in_flight` others were left on it.

        Of requests sent together all that are too many are refused; what is left is what it takes. But a limit is at
        most halved by what was sent under it, since a refusal may also come while little is in flight; and a refusal
        among many answers changes nothing.
        """
        if self.is_fixed:
            return
        self._credit -= 1
        if self._credit >= 0:
            return
        self._credit = 0.0
        if began >= self._floor_since:
            self._floor, self._floor_since = math.ceil(self.value / 2), now
            is_again = self._refused_at is not None and CLOSE < self.value / self._refused_at < 1 / CLOSE
            self._wait(is_again)
        if max(in_flight, self._floor) < self.value:
            self._refused_at, self._step = self.value, 1
            self._set(now, max(1, in_flight, self._floor))

    def _judge(self, now: float, throughput: float) -> None:
        if self._refused_at is not None:
            self._recover(now)
        elif self._before and throughput < self._before[1] * (1 + WORTH * (self.value / self._before[0] - 1)):
            self._wait(is_again=True)
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
        """Feel for the refused limit in steps that grow while nothing is refused; well past it go on as if it were
        new.
        """
        if self.value >= min(self.ceiling, 2 * self._refused_at):
            self._refused_at = self._before = None
            self._set(now, self.value)
        elif self._hold:
            self._hold -= 1
            self._set(now, self.value)
        else:
            self._set(now, self.value + self._step)
            self._step *= 2

    def _wait(self, is_again: bool) -> None:
        """Keep from the next step for a while, which doubles each time the same step fails."""
        self._holds = min(LONGEST_HOLD, self._holds * 2) if is_again else FIRST_HOLD
        self._hold = self._holds if is_again else 0

    def _set(self, now: float, value: int) -> None:
        self.value = min(self.ceiling, value)
        self._since = now
        self._is_binding = False
        self._clear()
