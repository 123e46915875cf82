"""Whether one more prompt may be sent, so that the end lands on the budget. Counts only: no clock, no servers."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import ceil, sqrt

from tokenfill.responses.expectation import Expectation, Forecast

# Held back early, the last prompts are admitted when little is uncertain any more, at the price of a longer drain:
# benchmarks/README.md has the figures for 0, a half and 1.
CARE = 0.5  # standard deviations of the tokens in flight
LOOKS = 64  # the forecast is renewed when a 64th of the requests in flight has been settled


class Admission:
    """Admits prompts while `accepted + expected in flight`, and some care, is below the budget."""

    def __init__(self, expectation: Expectation, budget: int, care: float = CARE):
        """`expectation` is shared with the caller, who lets it learn every answer that ends."""
        self._expectation = expectation
        self._budget = budget
        self._care = care
        self._room = 0.0
        self._fresh = 1.0
        self._in_flight: int | None = None

    def admit(
        self, accepted: int, in_flight: int, generated: Callable[[], Sequence[float]], prompt_tokens: int = 0
    ) -> bool:
        """Whether one more prompt is to be sent now; on True the caller counts it as in flight from then on.

        `accepted`: the tokens that count so far. `in_flight`: the requests admitted and not yet settled, also those
        that wait for a place or a retry, and the unfinished answers of an earlier run. `generated`: gives about how
        many tokens each of these has so far (one that a kill threw back: how far it had come), and is called only
        when the forecast has to be renewed. Where prompts count too, `accepted` includes the prompts in flight, and
        `prompt_tokens` is the length of the new one.
        """
        if accepted + prompt_tokens + (in_flight + 1) * self._expectation.cap <= self._budget:
            self._in_flight = None
            return True
        if self._in_flight is None or self._in_flight - in_flight >= max(1, in_flight // LOOKS) or not in_flight:
            forecast = self._expectation.forecast(generated())
            self._room = room(accepted, self._budget, forecast, self._care)
            self._fresh, self._in_flight = forecast.fresh, in_flight
        if self._room <= 0:
            return False
        self._room -= 1 + prompt_tokens / self._fresh
        self._in_flight += 1
        return True


def room(accepted: int, budget: int, forecast: Forecast, care: float = CARE) -> int:
    """How many prompts may be sent at once; at least 1 when nothing is in flight and the budget is not met."""
    short = budget - accepted - forecast.tokens
    if short <= 0:
        return 0

    def is_held_back(earlier: int) -> bool:
        deviation = sqrt(forecast.variance + earlier * forecast.fresh_variance)
        return earlier * forecast.fresh + care * deviation >= short

    return bisect_left(range(ceil(short / forecast.fresh)), True, key=is_held_back)
