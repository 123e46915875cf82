"""Journal lines → answers: parts joined, what has ended, what counts towards the budget. Pure: no files, no clock."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from sys import intern
from types import NoneType

ENDED = ("stop", "length")
PART = "part"
FINISHES = (*ENDED, PART)
# A cut answer goes on only where it may grow by at least this many tokens, so that servers whose usable
# context differs by a few tokens do not reopen every answer that filled it.
REOPENED_BY_AT_LEAST = 16

Key = tuple[str, str, int, int]  # (id, prompt_hash, sample, turn)


@dataclass(frozen=True, slots=True)
class Counting:
    """Which answers count towards the budget, and with how many tokens.

    `context_length` is the number of tokens a prompt and its answer may fill together, None where no server has
    told it yet.
    """

    budget_counts: str = "output"  # output | total
    truncated: str = "keep"  # keep | drop
    cycles: str = "drop"  # keep | drop
    samples_per_prompt: int = 1
    max_new_tokens: int = 16384
    context_length: int | None = None

    @classmethod
    def of(cls, settings: Mapping, context_length: int | None) -> "Counting":
        """The counting that a stage's settings ask for; other keys in them are passed over."""
        names = {field.name for field in fields(cls)} - {"context_length"}
        return cls(**{name: settings[name] for name in names}, context_length=context_length)

    def allowance(self, prompt_tokens: int) -> int:
        """Most tokens an answer to a prompt of `prompt_tokens` ids may have; zero or less: no room."""
        if self.context_length is None:
            return self.max_new_tokens
        return min(self.max_new_tokens, self.context_length - prompt_tokens)

    def has_ended(self, answer: "Answer") -> bool:
        """Whether nothing more is asked for this answer.

        One cut at the length it was allowed goes on when it may be longer today; one that was to go on has ended
        when it is already as long as it may be today.
        """
        allowance = self.allowance(answer.prompt_tokens)
        match answer.finish_reason:
            case "stop":
                return True
            case "length":
                return allowance < answer.max_new_tokens + REOPENED_BY_AT_LEAST
            case _:
                return answer.output_tokens >= allowance

    def counts(self, answer: "Answer") -> bool:
        """Whether this answer is part of the data set: ended, wanted and not dropped by policy."""
        return (
            self.has_ended(answer)
            and not answer.is_broken
            and answer.sample < self.samples_per_prompt
            and not (self.truncated == "drop" and answer.is_cut)
            and not (self.cycles == "drop" and "cycle" in answer.flags)
        )

    def tokens(self, answer: "Answer") -> int:
        """Tokens of one answer by the measure of the budget."""
        return answer.output_tokens + (answer.prompt_tokens if self.budget_counts == "total" else 0)


@dataclass(slots=True)
class Answer:
    """What the journal holds of one answer: its parts folded together, without the ids.

    `places` are the byte offsets of its lines in the journal, in the order of the parts.
    """

    sample: int
    prompt_tokens: int
    max_new_tokens: int
    output_tokens: int
    finish_reason: str
    flags: frozenset[str]
    ended_at: float
    server: str
    places: tuple[int, ...]
    is_broken: bool = False  # a part before the last one is missing

    @property
    def is_cut(self) -> bool:
        """Whether it ended, if it has, at its length and not by itself."""
        return self.finish_reason != "stop"


def key_of(line: dict) -> Key:
    """The answer that a journal line belongs to."""
    return line["id"], line["prompt_hash"], line["sample"], line["turn"]


def is_well_formed(line: object) -> bool:
    """Whether a parsed journal line has the fields that counting and joining rely on, with their types."""
    if type(line) is not dict:
        return False
    field = line.get
    return (
        type(field("id")) is str
        and type(field("prompt_hash")) is str
        and type(field("sample")) is int
        and type(field("turn")) is int
        and type(field("part")) is int
        and type(field("prompt_tokens")) is int
        and type(field("output_ids")) is list
        and len(line["output_ids"]) > 0
        and field("finish_reason") in FINISHES
        and type(field("max_new_tokens")) in (int, NoneType)
        and type(field("flags")) in (list, NoneType)
        and type(field("server")) in (str, NoneType)
        and type(field("started", 0)) in (float, int)
        and type(field("seconds", 0)) in (float, int)
    )


def fold(answers: dict[Key, Answer], line: dict, place: int) -> bool:
    """Add a journal line to the answers; False if its key stands there already, which leaves them as they are."""
    key = key_of(line)
    earlier = answers.get(key)
    parts_before = len(earlier.places) if earlier else 0
    if line["part"] < parts_before:
        return False
    tokens = len(line["output_ids"])
    answers[key] = Answer(
        sample=line["sample"],
        prompt_tokens=line["prompt_tokens"],
        max_new_tokens=line.get("max_new_tokens") or tokens,
        output_tokens=tokens + (earlier.output_tokens if earlier else 0),
        finish_reason=intern(line["finish_reason"]),
        flags=frozenset(line.get("flags") or ()) | (earlier.flags if earlier else frozenset()),
        ended_at=line.get("started", 0.0) + line.get("seconds", 0.0),
        server=intern(line.get("server") or ""),  # the same few for all answers
        places=(*(earlier.places if earlier else ()), place),
        is_broken=line["part"] != parts_before or (earlier is not None and earlier.is_broken),
    )
    return True


@dataclass(slots=True)
class Tally:
    """What the answers come to under one way of counting. `tokens` is the sum over the answers that count."""

    tokens: int = 0
    responses: int = 0
    truncated: int = 0
    truncated_all: int = 0  # with those that do not count
    flagged: int = 0
    dropped: int = 0
    unfinished: int = 0
    last_ended_at: float = 0.0

    def add(self, answer: Answer, counting: Counting) -> None:
        """Count one answer in."""
        if not counting.has_ended(answer):
            self.unfinished += 1
            return
        self.flagged += bool(answer.flags)
        self.truncated_all += answer.is_cut
        if not counting.counts(answer):
            self.dropped += 1
            return
        self.tokens += counting.tokens(answer)
        self.responses += 1
        self.truncated += answer.is_cut
        self.last_ended_at = max(self.last_ended_at, answer.ended_at)


def tally(answers: Iterable[Answer], counting: Counting) -> Tally:
    """Recount all answers."""
    total = Tally()
    for answer in answers:
        total.add(answer, counting)
    return total
