"""One server and all that is known of it, and leave for one request to it. Choosing among servers is in servers.py."""

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from tokenfill.responses.engines import ServerFacts
from tokenfill.responses.servers.capacity import Limit
from tokenfill.responses.servers.health import Health, State, patience
from tokenfill.responses.servers.places import Places, PrivatePlaces

FADING = 0.95
SAY_AGAIN = 60.0  # seconds until a server's trouble is said once more


@dataclass(eq=False, slots=True)
class Place:
    """Leave for one request to one server, until it is released."""

    server: "Server"
    number: int
    began: float

    @property
    def url(self) -> str:
        """Where to send the request."""
        return self.server.url

    @property
    def abort_urls(self) -> tuple[str, ...]:
        """Where to send an abort of it."""
        return self.server.facts.workers or (self.server.url,)

    @property
    def speed(self) -> float:
        """Tokens/s of a request there; 0 before its first answer."""
        return self.server.speed or 0.0

    @property
    def streams(self) -> bool:
        """Whether only a streamed answer keeps its piece when it is ended early."""
        return self.server.facts.piece == "stream"


@dataclass(eq=False)
class Server:
    """One server and all that is known of it."""

    url: str
    health: Health
    limit: Limit
    places: Places | PrivatePlaces
    facts: ServerFacts = field(default_factory=ServerFacts)
    in_flight: set[Place] = field(default_factory=set)
    is_leaving: bool = False
    is_probed: bool = False
    is_in_doubt: bool = False  # a connection broke: it may be another server by now
    looked_at: float = 0.0  # when its facts were read
    not_before: float = 0.0  # Retry-After
    last_event: float = 0.0  # when a request last began or ended
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=64))  # seconds of the last answers
    tokens: float = 0.0  # of recent answers, those before weighing less and less
    seconds: float = 0.0
    said_at: float = -SAY_AGAIN
    is_said: bool = False

    def most(self, now: float) -> int:
        """Most requests in flight at this moment."""
        allowance = self.health.allowance(now)
        return self.limit.value if allowance is None else min(self.limit.value, allowance)

    def is_open(self, now: float) -> bool:
        """Whether it takes requests at all."""
        is_up = self.health.state is State.UP and not self.is_in_doubt
        return is_up and not self.is_leaving and now >= self.not_before

    def is_busy(self) -> bool:
        """Whether anybody has a request in flight on it."""
        return bool(self.in_flight) or self.places.held_by_others(self.limit.ceiling) > 0

    def patience(self, longest_piece: int) -> float:
        """Seconds of silence after which it is taken for hung."""
        return patience(longest_piece, self.speed, max(self.recent, default=0.0))

    @property
    def speed(self) -> float | None:
        """Tokens/s of one request, waiting included, as its recent answers showed; None before the first."""
        return self.tokens / max(self.seconds, 1e-6) if self.tokens else None

    def answered(self, tokens: int, seconds: float) -> None:
        """An answer came after so many seconds."""
        self.recent.append(seconds)
        self.tokens = FADING * self.tokens + tokens
        self.seconds = FADING * self.seconds + seconds

    def load(self, now: float, usual_speed: float) -> float:
        """Share of its limit that one more request would fill, over its speed: the least finishes soonest."""
        return (len(self.in_flight) + 1) / max(1, self.most(now)) / (self.speed or usual_speed)

    def silence(self, now: float) -> float:
        """Seconds since a request last began or ended; 0 where none is in flight."""
        return now - self.last_event if self.in_flight else 0.0


def troubles(servers: Iterable[Server]) -> str:
    """The servers that are not up, each with a few words why."""
    down = [f"{server.url}: {server.health.reason}" for server in servers if server.health.state is not State.UP]
    return "; ".join(down) or "none is configured"


def described(servers: Iterable[Server]) -> dict[str, dict]:
    """What each server said of itself, by its URL."""
    return {
        server.url: {key: value for key, value in asdict(server.facts).items() if value}
        for server in servers
        if server.facts != ServerFacts()
    }
