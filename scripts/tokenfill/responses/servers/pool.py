"""The pool of servers: which one gets the next request, which ones rest, what they say of themselves.

One server's decisions are in health.py (may it be asked), capacity.py (how much) and places.py (shared with other
workers), and meet in server.py. HTTP is in probe.py; the requests themselves are the caller's.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from tokenfill.errors import TemporaryFailure, UserError
from tokenfill.responses.engines import ServerFacts, WrongServer
from tokenfill.responses.failures import Failure
from tokenfill.responses.servers.capacity import Limit
from tokenfill.responses.servers.health import Health, State
from tokenfill.responses.servers.places import NoLocks, Places, PrivatePlaces, places_file
from tokenfill.responses.servers.probe import NotReady, Prober
from tokenfill.responses.servers.server import SAY_AGAIN, Place, Server, described, troubles
from tokenfill.responses.servers.wish import Wish

LOOK_AGAIN = 30.0  # seconds after which a server that is up is asked for its facts once more
# After these it may be another server that answers there.
RECONNECTS = frozenset({"connection", "gateway", "malformed"})
# HTTP 500 among them: the server is there, and the prompt may be the cause.
BAD_ANSWERS = frozenset(
    {"malformed", "not_an_answer", "nan", "stop_ignored", "cut_by_server", "aborted", "server_error"}
)

Outcome = tuple[int, float] | Failure | None


class Pool:
    """The servers of one run. `async with` reads their facts and waits for the first one that is up.

    The owner sets `on_change` (a place may have come free, or a server came or went) and `on_hung` (the requests in
    flight at a URL are to be ended and released as Failure("hung")), and calls `tick` about twice a second.
    """

    def __init__(
        self,
        protocol,
        session,
        urls: Iterable[str],
        engine: dict,
        *,
        folder: Path | None,
        rank: int,
        longest_answer: int,
        say: Callable[[str], None],
        launched=None,
        known_model: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        dice: random.Random | None = None,
    ):
        """`folder`: where workers share places; None: they do not. `rank`: the lower one is served first.

        `longest_answer`: most tokens of an answer. `known_model`: the model that the journal's answers are of.
        `launched`: the server started here, if any, with `url` and `crashes`.
        """
        self.on_change: Callable[[], None] = lambda: None
        self.on_hung: Callable[[str], None] = lambda url: None
        self._engine = engine
        self._prober = Prober(session, protocol, engine["served_model"], known_model)
        self._folder, self._rank, self._longest_answer = folder, rank, longest_answer
        self._say, self._launched = say, launched
        self._clock, self._dice = clock, dice or random.Random()
        self._servers: dict[str, Server] = {}
        self._started = clock()
        self._wish = Wish(self._look)
        self._probes: set[asyncio.Task] = set()
        for url in urls:
            self._add(url)

    async def __aenter__(self) -> "Pool":
        """Raises UserError for a server of another kind, TemporaryFailure if none is up for `outage_patience`."""
        try:
            await self._wait_for_one()
        except BaseException:
            await self.__aexit__()
            raise
        self._started = self._clock()
        lengths = filter(None, (self._engine["context_length"], self.facts.context_length))
        self._prober.context_length = min(lengths, default=None)
        return self

    async def _wait_for_one(self) -> None:
        await asyncio.gather(*(self._probe(server) for server in self._servers.values()))
        said_at = -SAY_AGAIN
        while True:
            refused = next((s for s in self._servers.values() if s.health.state is State.REFUSED), None)
            if refused:
                raise UserError(f"{refused.url} {refused.health.reason}")
            if any(server.health.state is State.UP for server in self._servers.values()):
                return
            waited = self._clock() - self._started
            if waited > self._engine["outage_patience"]:
                raise TemporaryFailure(
                    f"No server was up for {waited:.0f} s ({self.troubles()}); start one and run the same command."
                )
            if waited - said_at >= SAY_AGAIN:
                said_at = waited
                self._say(f"waiting for a server ({self.troubles()})")
            await asyncio.sleep(0.1)
            self.tick(self._clock())

    async def __aexit__(self, *_) -> None:
        self._wish.drop()
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)
        for server in self._servers.values():
            server.places.close()

    # -- what the owner asks ---------------------------------------------------------------------------------

    def place(self, avoid: Collection[str] = (), prefer: str | None = None) -> Place | None:
        """A place on the healthy server with the least load for its limit and speed, or None if there is none now.

        `prefer`: taken if it has a free place. `avoid`: not taken while any other healthy server is there.
        """
        now = self._clock()
        healthy = [server for server in self._servers.values() if server.is_open(now)]
        wanted = [server for server in healthy if server.url not in avoid] or healthy
        if len(wanted) > 1:
            usual = max((server.speed or 0.0 for server in wanted), default=0.0) or 1.0
            wanted.sort(key=lambda server: (server.url != prefer, server.load(now, usual)))
        for server in wanted:
            number = server.places.take(server.most(now))
            if number is not None:
                self._look(is_wanted=False)
                place = Place(server, number, now)
                server.in_flight.add(place)
                server.last_event = now
                return place
            server.limit.binds()
            if server.places.held < server.most(now):
                server.places.wait()  # others hold them all
                self._wish.renew()
        return None

    def release(self, place: Place, outcome: Outcome) -> None:
        """A request is over. `outcome`: (tokens, seconds) of an answer, a Failure, or None if it was ended by us."""
        server, now = place.server, self._clock()
        server.in_flight.remove(place)
        server.places.give_back(place.number)
        server.last_event = now
        if isinstance(outcome, tuple):
            tokens, seconds = outcome
            server.answered(tokens, seconds)
            server.health.answered(now)
            server.limit.ended(now, place.began, tokens, seconds)
        elif outcome is not None:
            self._failed(server, place, outcome, now)
        if server.is_leaving and not server.in_flight:
            self._drop(server)
        self.on_change()

    def tick(self, now: float) -> None:
        """Start the probes that are due and find the servers that hang."""
        if self._launched and self._launched.url not in self._servers:
            self._take_up([self._launched.url])
        for server in list(self._servers.values()):
            is_up = server.health.state is State.UP
            if now >= (server.looked_at + LOOK_AGAIN if is_up else server.health.until):
                self._start_probe(server)
            if is_up and (silence := server.silence(now)) > server.patience(self._longest_piece):
                server.health.hung(now, silence, self._dice)
                self._say_out(server, now)
                self.on_hung(server.url)
                self.on_change()

    def update(self, engine: dict) -> None:
        """Take up changed settings: servers come, or go when what they have in flight has ended."""
        self._engine, self._prober.served_model = engine, engine["served_model"]
        for server in self._servers.values():
            server.limit.set_ceiling(engine["concurrency"], is_fixed=not engine["adaptive"])
        if not self._launched:
            self._take_up(engine["servers"])
        self.on_change()

    def all_down_for(self) -> float:
        """Seconds for which no server has been of use; 0 while one is up and either answers or is being asked."""
        now, servers = self._clock(), self._servers.values()
        up = [server for server in servers if server.health.state is State.UP and not server.is_leaving]
        if any(server.health.is_proven() or server.health.strikes == 0 or server.is_busy() for server in up):
            return 0.0
        return now - max([self._started, *(s.health.last_proof for s in servers if s.health.last_proof)])

    def troubles(self) -> str:
        """The servers that are not up, each with a few words why."""
        return troubles(self._servers.values())

    @property
    def facts(self) -> ServerFacts:
        """What holds for all servers: the least context length, the model."""
        told = [server.facts for server in self._servers.values()]
        lengths = [facts.context_length for facts in told if facts.context_length]
        return ServerFacts(model=self.model, context_length=min(lengths, default=None))

    @property
    def model(self) -> str | None:
        """The model as the servers call it; None where none tells."""
        names = (server.facts.model for server in self._servers.values())
        return self._engine["served_model"] or next(filter(None, names), None)

    @property
    def crashes(self) -> int:
        """How often the server started here has died."""
        return self._launched.crashes if self._launched else 0

    def described(self) -> dict[str, dict]:
        """What each server said of itself, for the journal's meta."""
        return described(self._servers.values())

    def _look(self, is_wanted: bool) -> None:
        """Find places that other workers have given back, or tell them that none is wanted any more."""
        now = self._clock()
        for server in self._servers.values():
            if not is_wanted:
                server.places.stop_waiting()
            elif server.is_open(now) and server.places.has_free(server.most(now)):
                self.on_change()

    # -- what happens to a server ----------------------------------------------------------------------------

    @property
    def _longest_piece(self) -> int:
        return min(self._longest_answer, self._engine["part_tokens"] or self._longest_answer)

    def _failed(self, server: Server, place: Place, failure: Failure, now: float) -> None:
        name = failure.kind.name
        if name == "busy":
            left = server.places.held + server.places.held_by_others(server.limit.ceiling)
            server.limit.refused(now, place.began, left)
            server.not_before = max(
                server.not_before, now + (failure.retry_after or 0.0) * self._dice.uniform(1.0, 1.1)
            )
            is_out = left == 0 and server.health.unavailable(now, place.began, failure.message, self._dice)
        elif failure.kind.takes_server_out or name in BAD_ANSWERS:
            count = server.health.disappointed if name in BAD_ANSWERS else server.health.failed
            is_out = count(now, place.began, len(server.in_flight), failure.message, self._dice)
        else:
            server.health.answered(now)
            is_out = False
        if is_out:
            self._say_out(server, now)
        elif name in RECONNECTS and server.health.state is State.UP:
            server.is_in_doubt = True
            self._start_probe(server)

    def _say_out(self, server: Server, now: float) -> None:
        if now - server.said_at >= SAY_AGAIN and not server.is_leaving:
            server.said_at, server.is_said = now, True
            self._say(f"{server.url} is out ({server.health.reason}); it is tried again now and then")

    def _start_probe(self, server: Server) -> None:
        if not server.is_probed:
            probe = asyncio.get_running_loop().create_task(self._probe(server))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    async def _probe(self, server: Server) -> None:
        """Read a server's facts and judge by them whether it is there, and the right one."""
        server.is_probed = True
        try:
            facts = await self._prober.look(server.url)
        except NotReady as error:
            if server.health.state is not State.UP or server.is_in_doubt:
                server.health.probe_failed(self._clock(), str(error), self._dice)
                self._say_out(server, self._clock())
        except WrongServer as error:
            server.health.refused(self._clock(), str(error))
            self._say_out(server, self._clock())
        else:
            server.facts = facts
            if server.health.state is not State.UP:
                self._is_back(server)
        finally:
            server.is_probed = server.is_in_doubt = False
            server.looked_at = self._clock()
            self.on_change()

    def _is_back(self, server: Server) -> None:
        now = self._clock()
        if server.health.state is State.NEW:
            server.limit = self._limit(server.facts)
        server.last_event = now
        server.health.probed(now, len(server.in_flight))
        if server.is_said:
            server.is_said = False
            self._say(f"{server.url} is back")

    def _limit(self, facts: ServerFacts) -> Limit:
        return Limit(self._engine["concurrency"], facts.capacity, is_fixed=not self._engine["adaptive"])

    def _take_up(self, urls: Iterable[str]) -> None:
        urls = list(urls)
        for url in urls:
            if url in self._servers:
                self._servers[url].is_leaving = False
            else:
                self._add(url)
        for server in list(self._servers.values()):
            if server.url not in urls:
                server.is_leaving = True
                if not server.in_flight:
                    self._drop(server)

    def _add(self, url: str) -> None:
        places = PrivatePlaces()
        if self._folder is not None:
            try:
                places = Places(places_file(self._folder / "places", url), self._rank)
            except NoLocks as error:
                self._say(
                    f"{error.filename} cannot be locked ({error.strerror}): concurrency holds for each dataset alone"
                )
        self._servers[url] = Server(url, Health(self._clock()), self._limit(ServerFacts()), places)

    def _drop(self, server: Server) -> None:
        server.places.close()
        self._servers.pop(server.url, None)
