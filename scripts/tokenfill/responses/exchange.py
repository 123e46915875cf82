"""What one request of a dataset asks, and what its reply is in the journal. No I/O and no clock."""

from collections.abc import Mapping

from tokenfill.responses.answers import PART
from tokenfill.responses.dataset import Dataset
from tokenfill.responses.engines import Reply, cut_at_stop, is_penalised
from tokenfill.responses.replies import check, goes_in_a_cycle, seed_of
from tokenfill.responses.work import Ask


class Exchange:
    """All that the requests of a dataset have in common: sampling, seeds, stop ids, the length of a part."""

    def __init__(self, dataset: Dataset, protocol, part_tokens: int):
        """`protocol`: a module of `engines`. `part_tokens`: as in the config, 0 for answers in one piece."""
        self._protocol = protocol
        self._dataset = dataset.name
        self._sampling = {**dataset.settings["identity"]["sampling"], "stop_token_ids": dataset.stop_token_ids}
        self._seed = self._sampling.pop("seed")
        self._stop_ids = frozenset(dataset.stop_token_ids)
        self._vocab_size = dataset.prompts.facts["vocab_size"]
        self._settings_digest = dataset.settings_digest
        self._part_tokens = _part_limit(part_tokens, protocol.PART_TOKENS, self._sampling)

    def most_tokens(self, ask: Ask) -> int:
        """The most tokens to ask for now."""
        left = ask.allowance - len(ask.generated)
        return min(left, self._part_tokens) if self._part_tokens else left

    def request(self, ask: Ask, asked_for: int, request_id: str, model: str | None, stream: bool) -> dict:
        """The JSON body that asks for the next `asked_for` tokens."""
        return self._protocol.request(
            ask.prompt.input_ids + ask.generated,
            max_new_tokens=asked_for,
            sampling=self._sampling,
            seed=self._seed_of(ask),
            request_id=request_id,
            model=model,
            stream=stream,
        )

    def checked(self, ask: Ask, asked_for: int, reply: Reply) -> tuple[Reply, list[str]]:
        """The reply as it is kept, and its flags. Raises Failure for what is no answer."""
        if not self._protocol.STOPS_AT_IDS:
            reply = cut_at_stop(reply, self._stop_ids)
        flags = check(
            reply,
            sent=len(ask.prompt.input_ids) + len(ask.generated),
            asked_for=asked_for,
            vocab_size=self._vocab_size,
            stop_ids=self._stop_ids,
        )
        return reply, flags

    def finish(self, ask: Ask, asked_for: int, reply: Reply) -> str:
        """How a checked reply ends the answer, or that it is a part and the answer goes on."""
        if reply.finish_reason == "stop" or reply.output_ids[-1] in self._stop_ids:
            return "stop"
        return "length" if len(ask.generated) + asked_for >= ask.allowance else PART

    def can_go_on(self, asked_for: int, piece: Reply) -> bool:
        """Whether what an abort brought back is a part that the answer can go on from."""
        ids = piece.output_ids
        is_sound = ids and min(ids) >= 0 and max(ids) < self._vocab_size and self._stop_ids.isdisjoint(ids)
        return bool(self._part_tokens and is_sound and len(ids) < asked_for)

    def line(self, ask: Ask, reply: Reply, finish: str, flags: list[str]) -> dict:
        """The journal's line, but for where, when and by which model it was generated."""
        if finish == "length" and goes_in_a_cycle(ask.generated + reply.output_ids):
            flags = [*flags, "cycle"]
        return ask.line(self._settings_digest, reply.output_ids, finish) | {
            "text": reply.text,
            "flags": flags,
            "seed": self._seed_of(ask),
        }

    def _seed_of(self, ask: Ask) -> int | None:
        if self._seed is None:
            return None
        return seed_of(self._seed, self._dataset, ask.prompt.id, ask.sample, ask.prompt.turn, ask.part)


def _part_limit(part_tokens: int, protocol_limit: int | None, sampling: Mapping) -> int | None:
    """Most tokens asked for at once; None: answers are asked for in one piece.

    Penalties look at what was generated in the same request, so an answer in parts would be another answer.
    """
    if not part_tokens or is_penalised(sampling):
        return None
    return min(part_tokens, protocol_limit or part_tokens)
