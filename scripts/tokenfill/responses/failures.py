"""What to do when no answer comes: each class of failure has one decision. And the ledger of what was given up."""

import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import orjson

from tokenfill.errors import TemporaryFailure
from tokenfill.responses.answers import Key


class Decision(Enum):
    """What becomes of the prompt."""

    RETRY = "retry"  # ask again, on another server where there is one
    PUT_ASIDE = "put aside"  # give this prompt up
    STOP = "stop"  # end this dataset: no prompt would fare better


@dataclass(frozen=True, slots=True)
class FailureClass:
    """One row of the table.

    `attempts`: how often a prompt is asked before it is given up for this run; 0: as often as it takes, since the
    fault is the server's and not the prompt's. `is_transient`: given up now, asked again by the next run.
    `takes_server_out`: the server is given a rest, as well as the prompt.
    """

    name: str
    decision: Decision
    attempts: int = 0
    is_transient: bool = True
    takes_server_out: bool = False


_RETRY, _ASIDE, _STOP = Decision.RETRY, Decision.PUT_ASIDE, Decision.STOP

# docs/failures.md holds the same table for readers, and a test compares the two.
CLASSES = {
    row.name: row
    for row in (
        FailureClass("connection", _RETRY, takes_server_out=True),
        FailureClass("hung", _RETRY, takes_server_out=True),
        FailureClass("busy", _RETRY),  # 408, 429, 503
        FailureClass("gateway", _RETRY, takes_server_out=True),  # 502, 504
        FailureClass("server_error", _RETRY, attempts=6, takes_server_out=True),  # 500 and other 5xx
        FailureClass("aborted", _RETRY, attempts=10),  # HTTP 200, but somebody ended it
        FailureClass("malformed", _RETRY, attempts=6),  # cut, empty or HTML body
        FailureClass("not_an_answer", _RETRY, attempts=4),  # no ids, unknown finish, counts that do not match
        FailureClass("nan", _RETRY, attempts=4),  # the server's numbers broke down
        FailureClass("stop_ignored", _RETRY, attempts=4),  # a stop token in the middle of an answer
        FailureClass("cut_by_server", _RETRY, attempts=4),  # `length`, clearly short of what was allowed
        FailureClass("poison", _ASIDE, is_transient=False),  # in flight at two crashes of the server
        FailureClass("rejected", _ASIDE, is_transient=False),  # 400, 404, 413, 422
        FailureClass("too_long", _ASIDE, is_transient=False),  # leaves no room for an answer
        FailureClass("bad_token_ids", _ASIDE, is_transient=False),  # ids beside the vocabulary, or none
        FailureClass("broken_answer", _ASIDE, is_transient=False),  # a part in its middle is unreadable
        FailureClass("unauthorized", _STOP),  # 401, 403
    )
}


def of_status(status: int) -> FailureClass:
    """The class of an HTTP answer that is not 200."""
    if status in (401, 403):
        return CLASSES["unauthorized"]
    if status in (408, 429, 503):
        return CLASSES["busy"]
    if status in (502, 504):
        return CLASSES["gateway"]
    if status >= 500:
        return CLASSES["server_error"]
    if status >= 400:
        return CLASSES["rejected"]
    return CLASSES["malformed"]


class Failure(Exception):
    """One request that gave no answer.

    `status`: the HTTP status, None where none came. `piece`: what an aborted request had generated, if it came back.
    `was_sent`: False where no connection came about, so that the server cannot have seen the request.
    """

    def __init__(self, name: str, message: str, status: int | None = None, retry_after: float | None = None):
        super().__init__(message)
        self.kind = CLASSES[name]
        self.message = message
        self.status = status
        self.retry_after = retry_after
        self.piece = None
        self.was_sent = True


def next_step(kind: FailureClass, attempts: int) -> Decision:
    """What to do with a prompt that has now failed `attempts` times, this time with a failure of `kind`."""
    if kind.decision is Decision.RETRY and kind.attempts and attempts >= kind.attempts:
        return Decision.PUT_ASIDE
    return kind.decision


def retry_delay(attempts: int, retry_after: float | None, dice: random.Random) -> float:
    """Seconds until a prompt is asked again: doubling from 0.25 s to 30 s, jittered; never before Retry-After."""
    backed_off = min(30.0, 0.25 * 2 ** min(attempts, 10)) * dice.uniform(0.5, 1.0)
    return max(backed_off, (retry_after or 0.0) * dice.uniform(1.0, 1.1))


@dataclass
class Ledger:
    """The prompts given up, in `failures.jsonl`: one line each time one is given up; the last one is in force.

    A prompt given up for good stays so while `asked_with` (what was asked of it and by which limits) is the same.
    """

    path: Path
    asked_with: str
    permanent: dict[Key, str] = field(default_factory=dict)
    transient: set[Key] = field(default_factory=set)

    def load(self) -> None:
        """Read which prompts were given up for good. Transient failures get another chance: they are left out."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            for raw in file:
                try:
                    entry = orjson.loads(raw)
                    key = (entry["id"], entry["prompt_hash"], entry["sample"], entry["turn"])
                    kind = CLASSES[entry["class"]]
                    is_in_force = entry["asked_with"] == self.asked_with and not entry["transient"]
                except (orjson.JSONDecodeError, KeyError, TypeError):
                    continue  # a torn line costs one more try of one prompt
                self.permanent.pop(key, None)
                if is_in_force:
                    self.permanent[key] = kind.name

    def give_up(self, key: Key, failure: Failure, attempts: int) -> None:
        """Note that a prompt was given up. Raises TemporaryFailure where the ledger cannot be written."""
        is_transient = failure.kind.is_transient
        entry = {
            "id": key[0],
            "prompt_hash": key[1],
            "sample": key[2],
            "turn": key[3],
            "class": failure.kind.name,
            "transient": is_transient,
            "status": failure.status,
            "message": failure.message[:500],
            "attempts": attempts,
            "asked_with": self.asked_with,
        }
        if is_transient:
            self.transient.add(key)
        else:
            self.permanent[key] = failure.kind.name
        try:
            _append_line(self.path, orjson.dumps(entry))
        except OSError as error:
            raise TemporaryFailure(f"{self.path} cannot be written: {error.strerror}.") from error

    def counts(self) -> dict[str, int]:
        """Prompts given up for good, by class."""
        return dict(sorted(Counter(self.permanent.values()).items()))

    def __contains__(self, key: Key) -> bool:
        return key in self.permanent or key in self.transient


def _append_line(path: Path, raw: bytes) -> None:
    """Append a line, on a line of its own even after a torn one."""
    with path.open("a+b") as file:
        size = file.seek(0, 2)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                raw = b"\n" + raw
        file.write(raw + b"\n")
