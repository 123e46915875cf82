"""How many tokens the requests in flight will have given at their end, learned from a dataset's answers. No clock."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

BINS_PER_OCTAVE = 8
IMAGINARY = 0.5  # weight of the request that is always taken to go on to the cap


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of the requests in flight, and of one more. Tokens, and tokens squared."""

    tokens: float
    variance: float
    fresh: float
    fresh_variance: float


class Expectation:
    """The distribution of a dataset's answer lengths, as a product-limit estimate over bins of rising width.

    The answers that end first are the short ones, so their mean is too low. What is in flight is evidence as well: a
    request that has given g tokens is longer than g. Both enter the chance to end at a length, which is the number of
    answers that ended there over the number of requests that got as far (Kaplan and Meier, 1958; in bins, the life
    table's form). An imaginary request that goes on to `cap` is always among those that got as far: where nothing is
    known, answers are taken for long, and each answer makes that weigh less.
    """

    def __init__(self, cap: int):
        """`cap`: the most tokens an answer may have (`max_new_tokens`)."""
        self.cap = cap
        self._edges = _edges(cap)
        self._ended = [0] * len(self._edges)  # the last bin holds the answers that reached the cap
        self._counted = [0] * len(self._edges)

    def learn(self, length: int, counts: bool = True) -> None:
        """An answer has ended with `length` tokens, all its parts together.

        `counts`: whether its tokens count towards the budget; of the requests in flight the same share will.
        """
        i = bisect_right(self._edges, length) - 1
        self._ended[i] += 1
        self._counted[i] += counts

    def of(self, generated: Sequence[float]) -> float:
        """The tokens that will count of the requests in flight when all have ended, those given so far included.

        `generated`: about how many tokens each has given so far, in any order.
        """
        return self.forecast(generated).tokens

    @property
    def fresh(self) -> float:
        """The tokens expected of a new request while nothing is in flight."""
        return self.forecast(()).fresh

    def forecast(self, generated: Sequence[float]) -> Forecast:
        """`of` with its variance, and the same for a new request, given what is in flight."""
        flight = self._count(generated)
        means, variances = self._table(flight)
        tokens, variance = flight[-1] * means[-1], flight[-1] * variances[-1]
        for i, n in enumerate(flight[:-1]):
            if n:
                tokens += n * (means[i] + means[i + 1]) / 2
                variance += n * (variances[i] + variances[i + 1]) / 2
        return Forecast(tokens, variance, means[0], variances[0])

    def _count(self, generated: Sequence[float]) -> list[int]:
        """Requests in flight per bin. Sorting is cheap: requests kept in the order of their start are nearly sorted."""
        ordered = sorted(generated)
        below = [bisect_left(ordered, edge) for edge in self._edges[1:]]
        return [b - a for a, b in zip([0, *below], [*below, len(ordered)], strict=True)]

    def _table(self, flight: Sequence[int]) -> tuple[list[float], list[float]]:
        """Mean and variance of the tokens that will count of a request that has got to each edge."""
        share = (self._counted[-1] + IMAGINARY) / (self._ended[-1] + IMAGINARY)
        mean, square = share * self.cap, share * self.cap**2
        means, variances = [mean], [square - mean * mean]
        got_so_far = self._ended[-1] + flight[-1] + IMAGINARY
        for i in range(len(self._edges) - 2, -1, -1):
            left, right = self._edges[i], self._edges[i + 1]
            # Those in flight within the bin are at risk for half of it, on average.
            at_risk = got_so_far + self._ended[i] + flight[i] / 2
            got_so_far += self._ended[i] + flight[i]
            counted, goes_on = self._counted[i] / at_risk, 1 - self._ended[i] / at_risk
            mean = counted * (left + right) / 2 + goes_on * mean
            square = counted * (left * left + left * right + right * right) / 3 + goes_on * square
            means.append(mean)
            variances.append(max(0.0, square - mean * mean))
        return means[::-1], variances[::-1]


def _edges(cap: int) -> list[int]:
    """Bin edges from 0 to `cap`: whole numbers, an eighth of an octave apart where that is more than 1."""
    octaves = max(1, cap).bit_length()
    spaced = {round(2 ** (i / BINS_PER_OCTAVE)) for i in range(octaves * BINS_PER_OCTAVE)}
    return [0, *sorted(edge for edge in spaced if edge < cap), cap]
