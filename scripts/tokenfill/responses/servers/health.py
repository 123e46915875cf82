"""Whether a server may be asked: out after failures, back after a probe, hung when silent for too long.

Pure state: what happened and when is told from outside; nothing here sends a request or looks at a clock.
"""

import random
from dataclasses import dataclass
from enum import Enum

FIRST_REST, SHORT_REST, LONGEST_REST = 0.5, 5.0, 30.0
REFUSED_REST = 60.0
FAILURES_IN_A_ROW = 3  # one broken connection among many good answers is no outage
BAD_ANSWERS_IN_A_ROW = 8
SHORTEST_PATIENCE = 30.0
FIRST_PATIENCE = 600.0  # before anything has ended, a server may still be compiling kernels
SLOWEST_SPEED = 5.0  # tokens/s of one request, taken for granted until one has ended


class State(Enum):
    """What a server is good for."""

    NEW = "not reached yet"
    UP = "up"
    OUT = "out"
    REFUSED = "refused"


def rest(strikes: int, dice: random.Random, longest: float = LONGEST_REST) -> float:
    """Seconds until a server that was taken out `strikes` times in a row is probed: doubling, jittered."""
    return min(longest, FIRST_REST * 2 ** min(strikes - 1, 10)) * dice.uniform(0.5, 1.0)


def patience(longest_piece: int, speed: float | None, slowest: float) -> float:
    """Seconds of silence, with requests in flight, after which a server is taken for hung.

    `longest_piece`: most tokens one request asks for. `speed`: tokens/s of one request, waiting included, as its
    recent answers showed; None before the first. `slowest`: the longest of these in seconds.
    """
    if speed is None:
        return max(FIRST_PATIENCE, longest_piece / SLOWEST_SPEED)
    return max(SHORTEST_PATIENCE, 3 * longest_piece / speed, 2 * slowest)


@dataclass
class Health:
    """One server's standing. Times are seconds on one monotonic clock."""

    started: float
    state: State = State.NEW
    reason: str = "not reached yet"
    until: float = 0.0  # when it is to be probed, while it is not up
    strikes: int = 0  # times it was taken out since its last answer
    in_a_row: int = 0
    out_since: float = -1.0
    last_proof: float | None = None  # when it last answered a request
    is_on_trial: bool = True  # up, but no answer since it was out
    _back_at: float = 0.0
    _pace: float = 1.0
    _first: int = 0
    _survivors: int = 0

    def failed(self, now: float, began: float, in_flight: int, reason: str, dice: random.Random) -> bool:
        """The connection of a request that began at `began` broke; True if this takes the server out.

        `in_flight`: requests that are still under way, since what fails fast comes before what goes well. Failures of
        requests from before it was last taken out belong to that outage.
        """
        enough = 1 if self.strikes else FAILURES_IN_A_ROW
        return self._count(now, began, max(enough, in_flight // 8), LONGEST_REST, reason, dice)

    def disappointed(self, now: float, began: float, in_flight: int, reason: str, dice: random.Random) -> bool:
        """An answer came that is none; True if this takes the server out, for a short rest: it may be the prompts."""
        self.last_proof = now
        return self._count(now, began, max(BAD_ANSWERS_IN_A_ROW, in_flight // 8), SHORT_REST, reason, dice)

    def _count(self, now: float, began: float, enough: int, longest: float, reason: str, dice: random.Random) -> bool:
        if self.state is not State.UP or began <= self.out_since:
            return False
        self.in_a_row += 1
        if self.in_a_row < enough:
            return False
        self._take_out(now, reason, dice, longest)
        self._first, self._pace = 4, min(60.0, max(1.0, now - began))
        return True

    def unavailable(self, now: float, began: float, reason: str, dice: random.Random) -> bool:
        """A server with nothing to do was too busy for a request: it is not full, it is not there."""
        if self.state is not State.UP or began <= self.out_since:
            return False
        self._take_out(now, reason, dice)
        self._first, self._pace = 4, 1.0
        return True

    def hung(self, now: float, silence: float, dice: random.Random) -> None:
        """Nothing began or ended for `silence` seconds."""
        self._take_out(now, f"hung: nothing ended for {silence:.0f} s", dice)
        self._first, self._pace = 1, silence

    def answered(self, now: float) -> None:
        """A request came back as it should, if only with a refusal of that prompt."""
        self.last_proof = now
        self.in_a_row = 0
        if self.state is State.UP:
            self.strikes = 0
            self.is_on_trial = False
            if self._first == 1:
                self._first = 0  # what hung before has ended an answer

    def probed(self, now: float, in_flight: int) -> None:
        """A probe found the server ready. `in_flight`: requests that outlived the outage."""
        if self.state is State.NEW:
            self._first = self.strikes = 0
        self.state, self.reason = State.UP, ""
        self.in_a_row = 0
        self.is_on_trial = True
        self._back_at, self._survivors = now, in_flight

    def probe_failed(self, now: float, reason: str, dice: random.Random) -> None:
        """A probe found it not ready."""
        was = self.state
        self._take_out(now, reason, dice)
        if was is State.NEW:
            self.state = was
        elif was is State.UP:
            self._first, self._pace = 4, 1.0

    def refused(self, now: float, reason: str) -> None:
        """It is another server than the run needs; it is looked at again now and then."""
        self.state, self.reason, self.until = State.REFUSED, reason, now + REFUSED_REST
        self.out_since = now

    def allowance(self, now: float) -> int | None:
        """Most requests in flight on a server that has just come back; None once it has stood the test of time.

        It doubles in the time that the last failure took to show, so that a server that fails fast gets few requests
        each time, and one that is well is full again within seconds.
        """
        if not self._first:
            return None
        doublings = (now - self._back_at) / self._pace
        if doublings > 12:
            self._first = 0
            return None
        return self._survivors + int(self._first * 2**doublings)

    def is_proven(self) -> bool:
        """Up, and has answered since it was last out."""
        return self.state is State.UP and not self.is_on_trial

    def _take_out(self, now: float, reason: str, dice: random.Random, longest: float = LONGEST_REST) -> None:
        self.strikes += 1
        self.state, self.reason = State.OUT, reason
        self.until, self.out_since = now + rest(self.strikes, dice, longest), now
