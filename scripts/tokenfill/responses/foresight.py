"""What the answers in flight will come to, by those that ended, and whether one more prompt is asked."""

from collections.abc import Callable, Iterable

from tokenfill.responses.admission import Admission
from tokenfill.responses.answers import Answer, Counting
from tokenfill.responses.expectation import Expectation
from tokenfill.responses.work import Ask

# An admitted answer, in flight or waiting, and about how many tokens it has generated so far.
Admitted = tuple[Ask, float]


class Foresight:
    """Learns the lengths of one dataset's answers and admits prompts by them.

    `answers`: those of the journal, which have their say from the start.
    """

    def __init__(self, counting: Counting, budget: int, answers: Iterable[Answer]):
        self._counting = counting
        self._counts_prompts = counting.budget_counts == "total"
        self._expectation = Expectation(counting.max_new_tokens)
        self._admission = Admission(self._expectation, budget)
        for answer in answers:
            if counting.has_ended(answer):
                self.learn(answer)

    def learn(self, answer: Answer) -> None:
        """An answer has ended."""
        tokens = min(answer.output_tokens, self._expectation.cap)
        self._expectation.learn(tokens, counts=self._counting.counts(answer))

    def admits(self, ask: Ask, accepted: int, in_flight: int, admitted: Callable[[], list[Admitted]]) -> bool:
        """Whether `ask` is to be sent. `accepted`: tokens that count so far; `in_flight`: how many `admitted` gives."""
        prompt_tokens = 0
        if self._counts_prompts:
            accepted += sum(len(other.prompt.input_ids) for other, _ in admitted())
            prompt_tokens = len(ask.prompt.input_ids)
        return self._admission.admit(
            accepted, in_flight, lambda: [tokens for _, tokens in admitted()], prompt_tokens=prompt_tokens
        )
