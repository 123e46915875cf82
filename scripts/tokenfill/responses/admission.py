"""Whether one more prompt may be sent, so that the end lands on the budget. Counts only: no clock, no servers."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import ceil, sqrt

from tokenfill.responses.expectation import Expectation, Forecast

# The more of the expected tokens are uncertain, the earlier admission holds back; see benchmarks/budget_simulation.py.
CARE = 0.5  # standard deviations of the tokens in flight
LOOKS = 64  # the forecast is renewed when a 64th of the requests in flight has left


class Admission:
    """Admits prompts while `accepted + expected in flight` (and some care) is below the budget."""

    def __init__(self, expectation: Expectation, budget: int, care: float = CARE):
        self._expectation = expectation
        self._budget = budget
        self._care = care
        self._room = 0
        self._in_flight: int | None = None

    def admit(self, accepted: int, in_flight: int, generated: Callable[[], Sequence[float]]) -> bool:
        """True if one more prompt is to be sent now; the caller then counts it as in flight.

        `accepted`: the tokens that count so far. `in_flight`: the requests admitted and not yet settled, also those
        that wait for a place or a retry, and the unfinished answers of an earlier run. `generated`: gives about how
        many tokens each of these has, and is only called when the forecast has to be renewed.
        """
        if self._in_flight is None or self._in_flight - in_flight >= max(1, in_flight // LOOKS) or not in_flight:
            self._room = room(accepted, self._budget, self._expectation.forecast(generated()), self._care)
            self._in_flight = in_flight
        if self._room <= 0:
            return False
        self._room -= 1
        self._in_flight += 1
        return True


def room(accepted: int, budget: int, forecast: Forecast, care: float = CARE) -> int:
    """How many prompts more may be sent at once. At least 1 when nothing is in flight and the budget is not met."""
    short = budget - accepted - forecast.tokens
    if short <= 0:
        return 0

    def held_back(more: int) -> bool:
        deviation = sqrt(forecast.variance + more * forecast.fresh_variance)
        return more * forecast.fresh + care * deviation >= short

    return bisect_left(range(ceil(short / forecast.fresh)), True, key=held_back)
