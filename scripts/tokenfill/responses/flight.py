"""The requests in flight of one dataset: admission, what comes back, draining. One event loop, one writer."""

import asyncio
import contextlib
import logging
import random
import time
import uuid
from dataclasses import dataclass

from tokenfill.errors import TemporaryFailure, UserError
from tokenfill.responses.answers import PART
from tokenfill.responses.client import Client
from tokenfill.responses.dataset import Dataset
from tokenfill.responses.engines import Reply
from tokenfill.responses.exchange import Exchange
from tokenfill.responses.failures import Decision, Failure, Ledger, next_step, retry_delay
from tokenfill.responses.foresight import Admitted, Foresight
from tokenfill.responses.giving_up import GivingUp
from tokenfill.responses.work import Ask, Work

log = logging.getLogger(__name__)

ELSEWHERE_SECONDS = 0.5
BROKEN_OFF = frozenset({"connection", "malformed", "aborted"})  # what the death of a server looks like
CRASHES_OF_POISON = 2
TRUNCATED_SHARE, TRUNCATED_OF_AT_LEAST = 0.3, 200


@dataclass(slots=True)
class Flight:
    """One request under way. `asked_for`: most tokens it allows. Times are monotonic seconds."""

    ask: Ask
    place: object
    request_id: str
    asked_for: int
    started: float
    crashes_before: int
    is_suspect: bool
    task: asyncio.Task | None = None
    is_aborted_by_us: bool = False
    is_hung: bool = False


class Filler:
    """Fills one dataset from the servers of a pool until its budget is met, its prompts run out or it is told to stop.

    The caller runs `run` and, beside it, tells it of signals (`drain`, `stop_now`).
    """

    def __init__(self, dataset: Dataset, work: Work, ledger: Ledger, pool, client: Client, protocol, engine: dict, say):
        self.dataset, self.work, self.ledger = dataset, work, ledger
        self.pool, self.client, self.engine = pool, client, engine
        self.say = say
        self.failures = 0
        self.draining_since: float | None = None
        self.fatal: Exception | None = None
        self.wake = asyncio.Event()
        self.flights: dict[str, Flight] = {}
        self._hand: Ask | None = None
        self._dice = random.Random()
        self._exchange = Exchange(dataset, protocol, engine["part_tokens"])
        self.giving_up = GivingUp(dataset.name, ledger, engine["max_failed"])
        self._is_warned_of_truncation = False
        self._suspects_in_flight = 0
        self._foresight = Foresight(dataset.counting, dataset.budget, dataset.answers.values())

    # -- what is admitted ------------------------------------------------------------------------------------

    def _admitted(self) -> list[Admitted]:
        """Every admitted answer with about how many tokens it has generated so far."""
        now = time.monotonic()
        flying = [
            (f.ask, len(f.ask.generated) + min(f.asked_for, f.place.speed * (now - f.started)))
            for f in self.flights.values()
        ]
        waiting = [(ask, len(ask.generated)) for ask in self.work.waiting()]
        in_hand = [(self._hand, len(self._hand.generated))] if self._hand is not None else []
        return [(ask, max(tokens, ask.reached)) for ask, tokens in (*flying, *waiting, *in_hand)]

    def reached(self) -> dict[str, int]:
        """How far each admitted answer has come, {Ask.name: tokens}: what a run after a kill starts from."""
        return {ask.name: int(tokens) for ask, tokens in self._admitted()}

    def _next(self) -> Ask | None:
        """What is to be sent now, if anything is."""
        is_met = self.dataset.is_met()
        if self._hand is not None and is_met and not self._hand.generated:
            self._hand = None
        if self._hand is not None:
            return self._hand
        ask = self._owed(is_met)
        while ask is not None and ask.crashes >= CRASHES_OF_POISON:
            self._put_aside(ask, Failure("poison", "the server crashed twice while this prompt was in flight"))
            ask = self._owed(is_met)
        if ask is not None or is_met or (fresh := self.work.peek_fresh()) is None:
            return ask
        in_flight = len(self.flights) + self.work.waiting_count()
        is_admitted = self._foresight.admits(fresh, self.dataset.tally.tokens, in_flight, self._admitted)
        return self.work.take_fresh() if is_admitted else None

    def _owed(self, is_met: bool) -> Ask | None:
        return self.work.owed(
            time.monotonic(),
            crashes=self.pool.crashes,
            suspects_allowed=self._suspects_in_flight == 0,
            only_begun=is_met,
        )

    async def run(self) -> None:
        """Send and receive until nothing is left to do. Raises what ended the run early."""
        try:
            while self.fatal is None and self.draining_since is None:
                self.wake.clear()
                ask = self._next()
                if ask is None:
                    if not self.flights and (self.dataset.is_met() or not self.work.waiting_count()):
                        break
                    await self._rest(self.work.next_retry())
                    continue
                place = self.pool.place(avoid=ask.avoid, prefer=ask.stay_with)
                if place is None and ask.avoid:
                    # The servers it may go to are full; others may still have room for the next prompt.
                    self._hand = None
                    self.work.retry_at(time.monotonic() + ELSEWHERE_SECONDS, ask)
                    continue
                if place is None:
                    self._hand = ask
                    await self._rest(None)
                    continue
                self._hand = None
                self._start(ask, place)
                if len(self.flights) % 16 == 0:
                    await asyncio.sleep(0)  # let answers in while many requests start
            while self.flights and self.fatal is None:
                self.wake.clear()
                await self._rest(None)
        finally:
            for flight in list(self.flights.values()):
                flight.task.cancel()
            await asyncio.gather(*(f.task for f in self.flights.values()), return_exceptions=True)
        if self.fatal is not None:
            raise self.fatal

    async def _rest(self, until: float | None) -> None:
        """Wait until something changed, at most for a second."""
        seconds = 1.0 if until is None else max(0.0, min(1.0, until - time.monotonic()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may swallow a cancellation
                await self.wake.wait()

    def _start(self, ask: Ask, place) -> None:
        flight = Flight(
            ask=ask,
            place=place,
            request_id=f"tokenfill-{uuid.uuid4().hex}",
            asked_for=self._exchange.most_tokens(ask),
            started=time.monotonic(),
            crashes_before=self.pool.crashes,
            is_suspect=ask.crashes > 0,
        )
        self._suspects_in_flight += flight.is_suspect
        self.flights[flight.request_id] = flight
        flight.task = asyncio.create_task(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        """One request from its sending to what became of it."""
        ask, asked_for, started = flight.ask, flight.asked_for, time.time()
        model = self.engine["served_model"] or self.pool.model
        body = self._exchange.request(ask, asked_for, flight.request_id, model, flight.place.streams)
        try:
            try:
                reply = await self.client.ask(flight.place.url, body, flight.request_id)
                reply, flags = self._exchange.checked(ask, asked_for, reply)
            except Failure as failure:
                is_ours = flight.is_aborted_by_us and failure.piece is not None
                self.pool.release(flight.place, None if is_ours else failure)
                if not (is_ours and self._keep_piece(flight, failure.piece, started)):
                    self._failed(flight, failure)
            else:
                seconds = time.monotonic() - flight.started
                self.pool.release(flight.place, (len(reply.output_ids), seconds))
                self._keep(flight, reply, flags, self._exchange.finish(ask, asked_for, reply), started)
        except asyncio.CancelledError:
            failure = Failure("hung", "the server neither ended nor began an answer for too long")
            self.pool.release(flight.place, failure if flight.is_hung else None)
            if not flight.is_hung:
                raise
            self._failed(flight, failure)
        except Exception as error:  # the run ends with it, and what is kept is kept
            self.fatal = self.fatal or error
        finally:
            self._suspects_in_flight -= flight.is_suspect
            self.flights.pop(flight.request_id, None)
            self.wake.set()

    # -- what comes back -------------------------------------------------------------------------------------

    def _keep(self, flight: Flight, reply: Reply, flags: list[str], finish: str, started: float) -> None:
        """Write a line, count it, and queue the next part if there is one."""
        ask, url = flight.ask, flight.place.url
        line = self._exchange.line(ask, reply, finish, flags) | {
            "server": url,
            "model": reply.model or self.pool.model,
            "started": round(started, 3),
            "seconds": round(time.monotonic() - flight.started, 3),
        }
        answer = self.dataset.keep(ask.key, line)
        self.giving_up.succeeded()
        if finish != PART:
            self._foresight.learn(answer)
            self._warn_of_truncation()
        elif self.draining_since is None:
            ask.go_on(ask.generated + reply.output_ids, url)
            self.work.put_first(ask)

    def _keep_piece(self, flight: Flight, piece: Reply, started: float) -> bool:
        """Keep what an answer that we ended had come to, if it can go on from there."""
        if not self._exchange.can_go_on(flight.asked_for, piece):
            return False
        self._keep(flight, piece, [], PART, started)
        return True

    def _failed(self, flight: Flight, failure: Failure) -> None:
        """Decide what becomes of a prompt whose request failed."""
        ask, url = flight.ask, flight.place.url
        if self.draining_since is not None:
            return  # the next run asks again
        self.failures += 1
        log.info("%s part %d on %s: %s: %s", ask.key, ask.part, url, failure.kind.name, failure.message)
        if failure.kind.name in BROKEN_OFF and failure.was_sent:
            ask.lost_at = flight.crashes_before
        ask.failures += 1
        ask.attempts += failure.kind.attempts > 0
        self.fatal = self.fatal or self.giving_up.is_set_up_wrong(failure, url)
        match next_step(failure.kind, ask.attempts):
            case Decision.STOP:
                self.fatal = UserError(f"{self.dataset.name}: {url} answers {failure.status}: {failure.message}")
            case Decision.RETRY:
                ask.avoid.add(url)
                delay = retry_delay(ask.failures, failure.retry_after, self._dice)
                self.work.retry_at(time.monotonic() + delay, ask)
            case Decision.PUT_ASIDE:
                self._put_aside(ask, failure)

    def _put_aside(self, ask: Ask, failure: Failure) -> None:
        self.fatal = self.giving_up.put_aside(ask, failure, self.work.prompts_asked) or self.fatal

    def _warn_of_truncation(self) -> None:
        tally = self.dataset.tally
        ended = tally.responses + tally.dropped
        if self._is_warned_of_truncation or ended < TRUNCATED_OF_AT_LEAST:
            return
        if tally.truncated_all > TRUNCATED_SHARE * ended:
            self._is_warned_of_truncation = True
            self.say(
                f"{tally.truncated_all} of {ended} answers were cut at max_new_tokens "
                f"({self.dataset.counting.max_new_tokens}); raise it and they go on where they stopped."
            )

    # -- draining --------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Admit nothing more; what is in flight may still end."""
        if self.draining_since is None:
            self.draining_since = time.monotonic()
            self.wake.set()

    async def abort_in_flight(self) -> None:
        """Have the servers end what is in flight; the pieces that come back are kept as parts."""
        for flight in self.flights.values():
            flight.is_aborted_by_us = True
        await asyncio.gather(*(self.client.abort(f.place.abort_urls, f.request_id) for f in self.flights.values()))

    def give_up_hung(self, url: str) -> None:
        """End what is in flight on a server that hangs; the prompts are asked again elsewhere."""
        for flight in self.flights.values():
            if flight.place.url == url and not flight.is_hung:
                flight.is_hung = True
                flight.task.cancel()

    def stop_now(self, reason: str) -> None:
        """End at once; what is on disk is kept."""
        self.fail(TemporaryFailure(reason))

    def fail(self, error: Exception) -> None:
        """End at once with this error, or the one before it."""
        self.fatal = self.fatal or error
        self.wake.set()
