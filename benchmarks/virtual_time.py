"""A simulated server in virtual time, and a client that fills one dataset on it: answers of known lengths, kills."""

import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from math import inf, log
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from tokenfill.responses.admission import CARE, Admission
from tokenfill.responses.expectation import Expectation


def saturating(full_rate: float, half_at: int = 239) -> Callable[[int], float]:
    """Tokens per second of each of n requests on a server that gives `full_rate * n / (n + half_at)` in all."""
    return lambda n: full_rate / (n + half_at)


def lognormal_lengths(mean: float, sigma: float, cap: int, count: int, seed: int) -> list[int]:
    """`count` answer lengths of a log-normal distribution with this mean before it is cut at `cap`."""
    rng = random.Random(f"lengths {seed}")
    mu = log(mean) - sigma * sigma / 2
    return [max(1, min(cap, round(rng.lognormvariate(mu, sigma)))) for _ in range(count)]


class Server:
    """Gives all requests in flight tokens at one and the same speed, which depends on their number alone.

    So one counter, `given`, the tokens that a request in flight all the time would have, says when each one ends.
    """

    def __init__(self, speed: Callable[[int], float]):
        """`speed`: tokens per second of each request, of the number in flight."""
        self._speed = speed
        self._ends: list[tuple[float, int, object]] = []
        self._requests = 0
        self.now = 0.0
        self.given = 0.0

    def __len__(self) -> int:
        return len(self._ends)

    def start(self, request: object, tokens: float) -> None:
        self._requests += 1
        heapq.heappush(self._ends, (self.given + tokens, self._requests, request))

    def next_end(self, until: float = inf) -> object | None:
        """Go on to the end of a request and return it, or to the time `until` and return None."""
        if self._ends:
            speed = self._speed(len(self))
            end = self.now + (self._ends[0][0] - self.given) / speed
            if end <= until:
                self.now, self.given = end, self._ends[0][0]
                return heapq.heappop(self._ends)[2]
            self.given += (until - self.now) * speed
        self.now = until
        return None

    def kill(self, down: float) -> None:
        """What is in flight is lost, and `down` seconds pass."""
        self._ends.clear()
        self.now += down


class Client:
    """Fills one dataset whose prompts, in their order, have answers of `lengths` tokens.

    `care` None makes it the naive client, which admits until the budget is met. `part_tokens` 0: a kill loses what is
    in flight whole. `remembers`: after a kill it knows what was in flight and how far that was. `misjudged`: the
    relative error of what it takes for the progress of a request.
    """

    def __init__(
        self,
        lengths: list[int],
        budget: int,
        cap: int,
        *,
        care: float | None = CARE,
        part_tokens: int = 4096,
        remembers: bool = True,
        misjudged: float = 0.1,
        seed: int = 0,
    ):
        self.lengths, self.budget, self.cap, self.care = lengths, budget, cap, care
        self.part_tokens, self.remembers, self._misjudged = part_tokens, remembers, misjudged
        self._random = random.Random(f"estimates {seed}")
        self.accepted = self.lost = 0
        self.answered: set[int] = set()
        self.sent_tokens = 0  # the final tokens of all answers ever asked for
        self._parts: dict[int, int] = {}  # tokens on disk of answers that have not ended
        self._reached: dict[int, float] = {}  # what an answer had when a kill threw it back
        self._start()

    def _start(self) -> None:
        """A process begins: it reads the journal."""
        self._expectation = Expectation(self.cap)
        for prompt in self.answered:
            self._expectation.learn(self.lengths[prompt])
        self._admission = None if self.care is None else Admission(self._expectation, self.budget, self.care)
        self._unfinished = deque(sorted(self._parts.keys() | self._reached.keys()))
        taken = self.answered.union(self._unfinished)
        self._new = deque(prompt for prompt in range(len(self.lengths)) if prompt not in taken)
        self._flight: dict[int, tuple[float, float]] = {}  # the server's counter at the first token, and the error

    @property
    def in_flight(self) -> int:
        """Requests admitted and not ended, sent or not."""
        return len(self._flight) + len(self._unfinished)

    @property
    def is_done(self) -> bool:
        return not self.in_flight and (self.accepted >= self.budget or not self._new)

    @property
    def is_prefix(self) -> bool:
        """Whether the prompts answered are the first ones of the order."""
        return max(self.answered, default=-1) + 1 == len(self.answered)

    @property
    def mean_length(self) -> float:
        return self.accepted / len(self.answered)

    def send(self, server: Server) -> bool:
        """Send the next request, if there is one to be sent."""
        if self._unfinished:
            prompt = self._unfinished.popleft()
        elif self._new and self._admits(server):
            prompt = self._new.popleft()
            self.sent_tokens += self.lengths[prompt]
        else:
            return False
        on_disk = self._parts.get(prompt, 0)
        self._flight[prompt] = server.given - on_disk, self._random.lognormvariate(0, self._misjudged)
        server.start((self, prompt), self.lengths[prompt] - on_disk)
        return True

    def _admits(self, server: Server) -> bool:
        if self._admission is None:
            return self.accepted < self.budget
        return self._admission.admit(self.accepted, self.in_flight, lambda: self._generated(server))

    def _generated(self, server: Server) -> list[float]:
        reached, now = self._reached, server.given
        sent = [max(reached.get(p, 0), (now - start) * error) for p, (start, error) in self._flight.items()]
        return sent + [max(reached.get(p, 0), self._parts.get(p, 0)) for p in self._unfinished]

    def ended(self, prompt: int) -> None:
        del self._flight[prompt]
        self._parts.pop(prompt, None)
        self._reached.pop(prompt, None)
        self.answered.add(prompt)
        self.accepted += self.lengths[prompt]
        self._expectation.learn(self.lengths[prompt])

    def killed(self, server: Server) -> None:
        """Whole parts are on disk, the rest is lost, and the next process begins."""
        if self.remembers:
            self._reached = dict(zip([*self._flight, *self._unfinished], self._generated(server), strict=True))
        for prompt, (start, _) in self._flight.items():
            generated = server.given - start
            kept = int(generated // self.part_tokens) * self.part_tokens if self.part_tokens else 0
            self.lost += int(generated) - kept
            if kept:
                self._parts[prompt] = kept
        self._start()


def fill(client: Client, server: Server, places: int, kills: Iterable[float] = (), down: float = 60.0) -> float:
    """Seconds until the client is done, or until the last kill; started again `down` seconds after each kill."""
    kills = iter(kills)
    kill = next(kills, inf)
    while True:
        while len(server) < places and client.send(server):
            pass
        if client.is_done:
            return server.now
        ended = server.next_end(until=kill)
        if ended:
            client.ended(ended[1])
            continue
        client.killed(server)
        server.kill(down)
        kill = next((k for k in kills if k > server.now), inf)
