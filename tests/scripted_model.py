"""What the scripted server says and how fast. Faults, protocols and HTTP are in the files beside."""

import asyncio
import hashlib
import heapq
import math
import random
from array import array
from collections import deque
from functools import lru_cache

import tiny_tokenizer

LETTERS = tuple(b"abcdefghijklmnopqrstuvwxyz      .,")  # ids below 256 are bytes, so answers can be read


def ids_hash(ids: list[int]) -> str:
    """First 16 hex of sha256 over the ids as little-endian int32."""
    return hashlib.sha256(array("i", ids).tobytes()).hexdigest()[:16]


def text_of(ids: list[int]) -> str:
    """What the byte ids among `ids` spell; other ids show nothing, as a server that skips special tokens."""
    return bytes(i for i in ids if 0 <= i < 256).decode("utf-8", errors="replace")


def last_occurrence(ids: list[int], header: list[int]) -> int | None:
    """Index just after the last `header` in `ids`; None if it does not occur."""
    if not header:
        return None
    first, n = header[0], len(header)
    for i in range(len(ids) - n, -1, -1):
        if ids[i] == first and ids[i : i + n] == header:
            return i + n
    return None


class Model:
    """A deterministic model: the whole answer follows from the prompt's ids and the script's seed alone.

    A request that holds a prompt and the head of its answer goes on exactly where that head ends. The border
    is the last `answer_starts_after` in the ids; without one, a request is a continuation if it equals what
    was asked plus what was delivered before.
    """

    def __init__(self, script: dict):
        self.script = script
        self._lengths: dict[str, dict] = {}
        self._delivered: dict[str, tuple[str, int]] = {}
        self._answer = lru_cache(maxsize=4096)(self._make)

    def locate(self, ids: list[int]) -> tuple[str, int]:
        """(hash of the original prompt, ids of its answer that the request holds already)."""
        border = last_occurrence(ids, self.script["answer_starts_after"])
        whole = ids_hash(ids)
        prompt, position = self._delivered.get(whole, (whole, 0))
        if border is not None:
            prompt, position = ids_hash(ids[:border]), len(ids) - border
        if self.script["length_of_id"] and prompt not in self._lengths:
            own = (length for token, length in self.script["length_of_id"].items() if int(token) in ids)
            self._lengths[prompt] = next(own, self.script["length"])
        return prompt, position

    def delivered(self, ids: list[int], piece: list[int], prompt: str, position: int) -> None:
        if last_occurrence(ids, self.script["answer_starts_after"]) is None:
            self._delivered[ids_hash(ids + piece)] = (prompt, position + len(piece))

    def rest(self, prompt: str, position: int) -> list[int]:
        """What is left of the answer, the eos id at its end; just the eos id past the end."""
        return self._answer(prompt)[position:] or [self.script["eos"]]

    def _make(self, prompt: str) -> list[int]:
        draw = random.Random(f"{self.script['seed']}/{prompt}")
        length = max(1, draw_length(self._lengths.get(prompt, self.script["length"]), draw))
        letters = self.script["answer_ids"]
        table = [letters[i % len(letters)] for i in range(256)]
        return [table[byte] for byte in draw.randbytes(length - 1)] + [self.script["eos"]]


def draw_length(length: dict, draw: random.Random) -> int:
    """Tokens of an answer, eos included, by {"fixed": n}, {"list": [...]} or {"lognormal": {mean, sigma,
    cap}}.
    """
    if "fixed" in length:
        return length["fixed"]
    if "list" in length:
        return draw.choice(length["list"])
    shape = length["lognormal"]
    mu = math.log(shape["mean"]) - shape["sigma"] ** 2 / 2
    return min(round(draw.lognormvariate(mu, shape["sigma"])), shape.get("cap", 1 << 30))


class Slot:
    """One request inside the decoder; `ended` resolves when all its tokens are there or it was aborted."""

    def __init__(self, tokens: int, delay: float):
        self.tokens, self.delay, self.state = tokens, delay, "queued"
        self.ended: asyncio.Future = asyncio.get_running_loop().create_future()
        self.begin = self.since = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.produced = 0

    def __lt__(self, other: "Slot") -> bool:
        return self.begin < other.begin


class Decoder:
    """Requests that share one accelerator: all running ones advance at one speed.

    `rate`: None (an answer takes `delay` seconds whatever its length), tokens/s per request, or
    {"total": R, "half_at": k} for R * n / (n + k) tokens/s with n running. `capacity` run at once, the rest
    waits.
    """

    def __init__(self, rate, delay: float, capacity: int | None):
        self.rate, self.delay, self.capacity = rate, delay, capacity
        self.running: set[Slot] = set()
        self.queue: deque[Slot] = deque()
        self._decoding: list[tuple[float, Slot]] = []
        self._done_tokens = 0.0  # tokens that a request running since the start would have
        self._seen = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.max_running = 0

    @property
    def _loop(self):
        return asyncio.get_running_loop()

    def submit(self, tokens: int, delay: float | None = None) -> Slot:
        slot = Slot(tokens, self.delay if delay is None else delay)
        self.queue.append(slot)
        self._admit()
        return slot

    def progress(self, slot: Slot) -> int:
        """Tokens of `slot` so far."""
        if slot.state == "decoding":
            self._advance()
            return min(slot.tokens, int(self._done_tokens - slot.begin))
        if slot.state == "prefill" and self.rate is None and slot.delay:
            return min(slot.tokens, int(slot.tokens * (self._loop.time() - slot.since) / slot.delay))
        return slot.produced

    def end(self, slot: Slot) -> None:
        """Take `slot` out now: it is aborted or its client is gone. `ended` tells how many tokens there
        are.
        """
        if slot.state == "ended":
            return
        slot.produced = self.progress(slot)
        if slot.timer:
            slot.timer.cancel()
        if slot.state == "queued":
            self.queue.remove(slot)
        elif slot.state == "decoding":
            self._decoding = [entry for entry in self._decoding if entry[1] is not slot]
            heapq.heapify(self._decoding)
        self._finish(slot)
        self._admit()
        self._reschedule()

    def _finish(self, slot: Slot) -> None:
        slot.state = "ended"
        self.running.discard(slot)
        if not slot.ended.done():
            slot.ended.set_result(slot.produced)

    def _admit(self) -> None:
        while self.queue and (self.capacity is None or len(self.running) < self.capacity):
            slot = self.queue.popleft()
            slot.state, slot.since = "prefill", self._loop.time()
            self.running.add(slot)
            self.max_running = max(self.max_running, len(self.running))
            slot.timer = self._loop.call_later(slot.delay, self._after_delay, slot)

    def _after_delay(self, slot: Slot) -> None:
        if self.rate is None:
            slot.produced = slot.tokens
            self._finish(slot)
            self._admit()
            return
        self._advance()
        slot.state, slot.begin = "decoding", self._done_tokens
        heapq.heappush(self._decoding, (slot.begin + slot.tokens, slot))
        self._reschedule()

    def _speed(self) -> float:
        if isinstance(self.rate, dict):
            return self.rate["total"] / (len(self._decoding) + self.rate["half_at"])
        return self.rate

    def _advance(self) -> None:
        now = self._loop.time()
        if self._decoding:
            self._done_tokens += (now - self._seen) * self._speed()
        self._seen = now

    def _reschedule(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._decoding:
            self._advance()
            wait = (self._decoding[0][0] - self._done_tokens) / self._speed()
            self._timer = self._loop.call_later(max(0.0, wait), self._due)

    def _due(self) -> None:
        self._advance()
        while self._decoding and self._decoding[0][0] <= self._done_tokens + 1e-6:
            _, slot = heapq.heappop(self._decoding)
            slot.produced = slot.tokens
            self._finish(slot)
        self._admit()
        self._reschedule()


DEFAULTS = {
    "model": "tiny",
    "version": "1.0.0",
    "context_length": tiny_tokenizer.CONTEXT_LENGTH,
    "vocab_size": tiny_tokenizer.VOCAB_SIZE,
    "eos": tiny_tokenizer.IM_END,
    "answer_starts_after": tiny_tokenizer.ASSISTANT_HEADER,
    "answer_ids": list(LETTERS),
    "seed": 0,
    "length": {"fixed": 20},
    "length_of_id": {},  # {id: length} for the prompts that hold that id
    "delay": 0.002,
    "rate": None,
    "capacity": None,
    "max_queued": None,
    "api_key": None,
    "health": 200,
    "bad_ids_kill": False,
    "faults": [],
}


def complete_script(script: dict) -> dict:
    """`script` over the defaults; an unknown key is an error, so that a misspelt fault cannot pass a test."""
    unknown = set(script) - set(DEFAULTS)
    if unknown:
        raise ValueError(f"unknown keys in the server's script: {', '.join(sorted(unknown))}")
    return {**DEFAULTS, **script}
