"""What to ask next: unfinished answers, then prompts that failed and are ripe again, then new ones in their order."""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tokenfill.responses.answers import Answer, Counting, Key
from tokenfill.responses.failures import Failure, Ledger
from tokenfill.responses.prompt_table import Prompt, PromptTable


@dataclass(slots=True)
class Ask:
    """One answer to be had: its prompt, what was generated of it so far, and what asking for it has met with.

    `generated`: ids of the parts on disk. `allowance`: most tokens the whole answer may have. `failures` counts the
    requests of this part that failed, `attempts` those of them that its class counts; `avoid` are the servers they
    failed on, `stay_with` the one that has its cache. `crashes`: deaths of a launched server that it was in flight at;
    `lost_at`: how many deaths were known when a request was sent whose connection broke, while that is to be judged.
    `reached`: how many tokens it had come to in a run that was killed.
    """

    prompt: Prompt
    sample: int
    allowance: int
    part: int = 0
    generated: list[int] = field(default_factory=list)
    failures: int = 0
    attempts: int = 0
    crashes: int = 0
    lost_at: int | None = None
    reached: int = 0
    avoid: set[str] = field(default_factory=set)
    stay_with: str | None = None

    @property
    def key(self) -> Key:
        return self.prompt.id, self.prompt.prompt_hash, self.sample, self.prompt.turn

    @property
    def name(self) -> str:
        """The answer's name in `in_flight.json`."""
        return f"{self.prompt.prompt_hash}/{self.sample}"

    def line(self, settings: str, output_ids: list[int], finish_reason: str) -> dict:
        """The journal line of this part, without what its server and its clock have to add."""
        return {
            "v": 1,
            "id": self.prompt.id,
            "prompt_hash": self.prompt.prompt_hash,
            "sample": self.sample,
            "turn": self.prompt.turn,
            "part": self.part,
            "settings": settings,
            "output_ids": output_ids,
            "text": "",
            "finish_reason": finish_reason,
            "flags": [],
            "prompt_tokens": len(self.prompt.input_ids),
            "output_tokens": len(output_ids),
            "max_new_tokens": self.allowance,
            "seed": None,
            "prompt_ids": None,
            "server": None,
            "model": None,
            "attempt": self.failures + 1,
        }

    def go_on(self, generated: list[int], server: str) -> None:
        """A part came back: what is asked next is the part after it."""
        self.generated = generated
        self.part += 1
        self.failures = self.attempts = self.crashes = self.reached = 0
        self.lost_at = None
        self.avoid, self.stay_with = set(), server


@dataclass(frozen=True, slots=True)
class Limits:
    """What a prompt must keep to be sent."""

    counting: Counting
    min_new_tokens: int
    vocab_size: int
    room: Callable[[int], int | None]  # ids left for an answer by the servers' own rules; None: unknown

    def objection(self, prompt: Prompt) -> Failure | None:
        """Why a prompt cannot be sent to any server, or None."""
        ids = prompt.input_ids
        if not ids:
            return Failure("bad_token_ids", "the prompt holds no token ids")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            return Failure("bad_token_ids", f"the prompt holds an id outside the vocabulary of {self.vocab_size}")
        room = self.room(len(ids))
        if min(self.counting.allowance(len(ids)), math.inf if room is None else room) < self.min_new_tokens:
            return Failure(
                "too_long",
                f"the prompt has {len(ids)} tokens and leaves less room than min_new_tokens "
                f"({self.min_new_tokens}) in the context of {self.counting.context_length}",
            )
        return None


class Work:
    """The queue of one dataset. It hands out each answer once until it is given back."""

    def __init__(
        self,
        table: PromptTable,
        answers: dict[Key, Answer],
        limits: Limits,
        ledger: Ledger,
        read_parts: Callable[[Answer], list[int]],
        reached: Mapping[str, int],
    ):
        """`read_parts`: the ids that an answer has on disk. `reached`: how far answers had come at a kill, by name."""
        self._limits = limits
        self._ledger = ledger
        self._answers = answers
        self._counting = limits.counting
        self._unfinished: deque[Ask] = deque(self._resumed(table, read_parts))
        self._unfinished.extend(self._thrown_back(table, reached))
        self._queued = {ask.key for ask in self._unfinished}
        self._retries: list[tuple[float, int, Ask]] = []
        self._ticket = itertools.count()
        self._fresh = self._new_prompts(table)
        self._next_fresh: Ask | None = None
        self.prompts_asked = 0

    def _resumed(self, table: PromptTable, read_parts: Callable) -> Iterator[Ask]:
        """Answers that have parts on disk and are to go on; broken ones are given up."""
        unfinished = {
            key: answer
            for key, answer in self._answers.items()
            if not self._counting.has_ended(answer)
            and answer.sample < self._counting.samples_per_prompt
            and key not in self._ledger
        }
        by_hash: dict[str, list[tuple[Key, Answer]]] = {}
        for key, answer in unfinished.items():
            by_hash.setdefault(key[1], []).append((key, answer))
        for prompt in table.with_hashes(by_hash.keys()):
            for key, answer in by_hash[prompt.prompt_hash]:
                if (key[0], key[3]) != (prompt.id, prompt.turn):
                    continue
                if answer.is_broken:
                    self._ledger.give_up(key, Failure("broken_answer", "an earlier part cannot be read"), 0)
                    continue
                yield Ask(
                    prompt,
                    answer.sample,
                    self._counting.allowance(len(prompt.input_ids)),
                    part=len(answer.places),
                    generated=read_parts(answer),
                    stay_with=answer.server or None,
                )

    def _thrown_back(self, table: PromptTable, reached: Mapping[str, int]) -> Iterator[Ask]:
        """Answers that were in flight when an earlier run was killed, and have nothing on disk: asked anew, first."""
        samples: dict[str, list[int]] = {}
        for name in reached:
            prompt_hash, _, sample = name.partition("/")
            if int(sample) < self._counting.samples_per_prompt:
                samples.setdefault(prompt_hash, []).append(int(sample))
        for prompt in table.with_hashes(samples.keys()):
            for sample in samples[prompt.prompt_hash]:
                ask = Ask(prompt, sample, self._counting.allowance(len(prompt.input_ids)))
                ask.reached = min(reached[ask.name], ask.allowance)
                is_open = ask.key not in self._answers and ask.key not in self._ledger
                if is_open and self._limits.objection(prompt) is None:
                    yield ask

    def _new_prompts(self, table: PromptTable) -> Iterator[Ask]:
        """Prompts never answered nor given up: all of them once before any twice."""
        for sample in range(self._counting.samples_per_prompt):

            def is_new(id_: str, prompt_hash: str, turn: int, sample: int = sample) -> bool:
                key = (id_, prompt_hash, sample, turn)
                return not (key in self._answers or key in self._ledger or key in self._queued)

            for prompt in table.prompts(is_new):
                ask = Ask(prompt, sample, self._counting.allowance(len(prompt.input_ids)))
                objection = self._limits.objection(prompt)
                if objection:
                    self._ledger.give_up(ask.key, objection, 0)
                else:
                    yield ask

    def owed(self, now: float, *, crashes: int, suspects_allowed: bool, only_begun: bool) -> Ask | None:
        """Something admitted earlier that is to be asked now: a ripe retry or an unfinished answer.

        `crashes`: deaths of the launched server so far. `suspects_allowed`: whether a prompt that was in flight at one
        may go out. `only_begun`: once the budget is met, answers that have parts are finished and prompts without any
        are let go.
        """
        while self._retries and self._retries[0][0] <= now:
            _, ticket, ask = heapq.heappop(self._retries)
            if only_begun and not ask.generated:
                continue
            # A connection breaks before the server's death is known, so the blame is laid only now.
            if ask.lost_at is not None and crashes > ask.lost_at:
                ask.crashes, ask.lost_at = ask.crashes + 1, None
            if ask.crashes and not suspects_allowed:
                heapq.heappush(self._retries, (now + 1.0, ticket, ask))
                continue
            return ask
        while self._unfinished:
            ask = self._unfinished.popleft()
            if ask.generated or not only_begun:
                return ask
        return None

    def peek_fresh(self) -> Ask | None:
        """The next new prompt, which stays in the queue; None where there is none."""
        if self._next_fresh is None:
            self._next_fresh = next(self._fresh, None)
        return self._next_fresh

    def take_fresh(self) -> Ask:
        """The prompt that `peek_fresh` showed, now out of the queue."""
        ask, self._next_fresh = self._next_fresh, None
        self.prompts_asked += 1
        return ask

    def put_first(self, ask: Ask) -> None:
        """Queue the next part of an answer, before everything else."""
        self._unfinished.appendleft(ask)

    def retry_at(self, when: float, ask: Ask) -> None:
        """Queue an ask that failed until a time on the same clock as `owed`."""
        heapq.heappush(self._retries, (when, next(self._ticket), ask))

    def next_retry(self) -> float | None:
        """When the first waiting retry is ripe."""
        return self._retries[0][0] if self._retries else None

    def waiting(self) -> Iterator[Ask]:
        """All admitted answers that are not in flight."""
        yield from self._unfinished
        yield from (ask for _, _, ask in self._retries)

    def waiting_count(self) -> int:
        """How many `waiting` gives."""
        return len(self._unfinished) + len(self._retries)
