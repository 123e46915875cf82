"""What a server's reply is worth: an answer, a part of one, or a failure. Pure."""

import hashlib
from collections.abc import Sequence

from tokenfill.responses.engines import Reply
from tokenfill.responses.failures import Failure

# Servers return up to two tokens fewer than they were asked for near the end of their context.
SHORT_BY_AT_MOST = 4
CYCLE_LENGTH = 512
LONGEST_PERIOD = 32


def check(reply: Reply, *, sent: int, asked_for: int, vocab_size: int, stop_ids: frozenset[int]) -> list[str]:
    """The flags of an answer that is one. Raises Failure for what is none, though it came with HTTP 200.

    `sent`: ids of the prompt as sent. `asked_for`: most tokens this request allowed. `stop` must end in a stop id and
    hold none before it: an answer with one inside shows that the server ignored it; one without any at its end is
    kept with the flag `no_stop_token`, since servers may end at ids of their own. `length` must have used what was
    allowed.
    """
    ids = reply.output_ids
    if not ids:
        raise Failure("not_an_answer", "the answer holds no token ids", 200)
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise Failure("not_an_answer", f"the answer holds an id outside the vocabulary of {vocab_size}", 200)
    if reply.completion_tokens is not None and reply.completion_tokens != len(ids):
        raise Failure(
            "not_an_answer",
            f"the server counts {reply.completion_tokens} tokens and sent {len(ids)} ids",
            200,
        )
    if reply.prompt_tokens is not None and reply.prompt_tokens != sent:
        raise Failure(
            "not_an_answer", f"the server read {reply.prompt_tokens} tokens of a prompt of {sent}: it cuts prompts", 200
        )
    if len(ids) > asked_for:
        raise Failure("not_an_answer", f"{len(ids)} tokens came where at most {asked_for} were asked for", 200)
    if not stop_ids.isdisjoint(ids[:-1]):
        raise Failure("stop_ignored", "the answer goes on after a stop token: the server ignores stop_token_ids", 200)
    if reply.finish_reason == "stop":
        return [] if ids[-1] in stop_ids else ["no_stop_token"]
    if len(ids) < asked_for - SHORT_BY_AT_MOST:
        raise Failure(
            "cut_by_server",
            f"the server ended an answer at {len(ids)} of the {asked_for} tokens it was allowed: it has a limit of "
            "its own",
            200,
        )
    return []


def goes_in_a_cycle(ids: Sequence[int]) -> bool:
    """Whether the last 512 ids or more repeat with a period of at most 32."""
    if len(ids) < CYCLE_LENGTH:
        return False
    tail = ids[-CYCLE_LENGTH:]
    return any(tail[period:] == tail[:-period] for period in range(1, LONGEST_PERIOD + 1))


def seed_of(seed: int, dataset: str, prompt_id: str, sample: int, turn: int, part: int) -> int:
    """The seed of one request, in [0, 2^31): it follows from these six alone, so that it is the same in every run."""
    text = "\0".join((str(seed), dataset, prompt_id, str(sample), str(turn), str(part)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") >> 1
