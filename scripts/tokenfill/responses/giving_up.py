"""When a prompt is given up, and when that ends the run: early refusals may be the fault of the set-up."""

from collections import Counter

from tokenfill.errors import UserError
from tokenfill.responses.failures import Failure, Ledger
from tokenfill.responses.work import Ask

# Failures that a wrong set-up gives to every prompt alike; this many and not one answer end the run.
ALIKE = frozenset({"rejected", "malformed", "not_an_answer", "stop_ignored", "cut_by_server"})
ALL_ALIKE = 20
OF_AT_LEAST = 200  # prompts asked before their failed share means anything


class GivingUp:
    """The prompts of one run that are put aside. `max_failed`: the share of the prompts asked that may be."""

    def __init__(self, dataset: str, ledger: Ledger, max_failed: float):
        self._dataset = dataset
        self._ledger = ledger
        self._max_failed = max_failed
        self._has_succeeded = False
        self._alike: Counter[str] = Counter()
        self._held: list[tuple[Ask, Failure]] = []
        self._put_aside: Counter[str] = Counter()

    def succeeded(self) -> None:
        """An answer came: what was refused before it was those prompts' own fault."""
        if not self._has_succeeded:
            self._has_succeeded = True
            self._release_held()

    def is_set_up_wrong(self, failure: Failure, url: str) -> UserError | None:
        """An error that ends the run where every answer so far has failed for the same reason."""
        name = failure.kind.name
        if self._has_succeeded or name not in ALIKE:
            return None
        self._alike[name] += 1
        if self._alike[name] < ALL_ALIKE:
            return None
        return UserError(f"{self._dataset}: all {ALL_ALIKE} answers of {url} failed alike, {_advice(failure)}")

    def put_aside(self, ask: Ask, failure: Failure, asked: int) -> UserError | None:
        """Give a prompt up, or hold it while nothing has succeeded; an error where too many were.

        `asked`: prompts asked so far.
        """
        if not self._has_succeeded and failure.kind.name in ALIKE:
            self._held.append((ask, failure))
            return None
        self._give_up(ask, failure)
        aside = self._put_aside.total()
        if asked < OF_AT_LEAST or aside <= self._max_failed * asked:
            return None
        by_class = ", ".join(f"{count} {name}" for name, count in self._put_aside.most_common())
        return UserError(
            f"{self._dataset}: {aside} of {asked} prompts were put aside ({by_class}), more than engine.max_failed "
            f"({self._max_failed:g}) allows; see failures.jsonl, mend the cause and run again."
        )

    def settle(self, has_answers: bool) -> None:
        """At the end of the prompts, give up what is still held.

        Raises UserError where the dataset `has_answers` not at all: then the set-up is wrong, and not the prompts.
        """
        if self._held and not has_answers:
            raise UserError(f"{self._dataset}: not one prompt was answered, {_advice(self._held[0][1])}")
        self._release_held()

    def _release_held(self) -> None:
        for ask, failure in self._held:
            self._give_up(ask, failure)
        self._held.clear()

    def _give_up(self, ask: Ask, failure: Failure) -> None:
        self._put_aside[failure.kind.name] += 1
        self._ledger.give_up(ask.key, failure, ask.attempts)


def _advice(failure: Failure) -> str:
    status = f", HTTP {failure.status}" if failure.status else ""
    return (
        f"{failure.kind.name}{status} ({failure.message}); no prompt was given up. Mend the server or its settings "
        "under engine: and run again."
    )
