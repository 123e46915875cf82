"""Fill one dataset: see what is missing, have the servers answer it, certify. The one entry point of the rule."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tokenfill.errors import TemporaryFailure, UserError
from tokenfill.quantities import shown_duration
from tokenfill.responses.client import Client, connections_allowed, new_session
from tokenfill.responses.dataset import Dataset
from tokenfill.responses.engines import protocol as protocol_of
from tokenfill.responses.failures import Ledger
from tokenfill.responses.flight import Filler
from tokenfill.responses.progress import Progress
from tokenfill.responses.servers.launch import Launched, launched
from tokenfill.responses.servers.pool import Pool
from tokenfill.responses.work import Limits, Work
from tokenfill.settings import engine_of

ABORT_PATIENCE = 10.0  # seconds for aborted answers to come back
ABORT_AGAIN_AFTER = 2.0  # seconds: a server passes over an abort that overtakes its request
TICK = 0.5
SYNC_EVERY = 1.0
NOTE_EVERY = 3.0


def fill(*, settings: Path, prompts: Path, complete: Path, engine: Path, rank: int, alone: bool) -> None:
    """Fill a dataset to its budget and write `complete`.

    `settings`, `prompts`, `complete`, `engine`: the files of the design, all else lies beside `complete`.
    `rank`: this dataset's place in the config; the lower one goes first where several want the same server.
    `alone`: whether no other dataset shares this terminal.
    Raises UserError (the user must mend something) or TemporaryFailure (run again to go on).
    """
    Path(complete).parent.mkdir(parents=True, exist_ok=True)
    said: list[str] = []
    dataset = Dataset(Path(settings), Path(prompts), Path(complete), said.append)
    progress = Progress(dataset, Path(complete).parent, alone)
    dataset.say = dataset.journal.say = progress.say
    for sentence in said:
        progress.say(sentence)
    try:
        while True:
            ledger = dataset.ledger()
            worker = Worker(dataset, ledger, progress, Path(engine), rank)
            if not dataset.is_met() and _has_work(dataset, ledger):
                asyncio.run(worker.run())
            if dataset.reread_settings() and not dataset.is_met():
                if worker.is_told_to_stop:
                    raise TemporaryFailure(worker.stopped())
                continue  # a budget raised meanwhile is filled in the same run
            if not dataset.is_met() and ledger.transient:
                raise TemporaryFailure(
                    f"{dataset.name}: {len(ledger.transient)} prompts failed for now and {dataset.tally.tokens:,} of "
                    f"{dataset.budget:,} tokens are there; run again to ask them again (reasons in failures.jsonl)."
                )
            break
        certified = dataset.certify(ledger.counts())
        progress.show("complete", 0, 0)
        progress.say(_verdict(certified))
    finally:
        progress.close()
        dataset.close()


def _verdict(complete: dict) -> str:
    """The last line of a run that succeeded."""
    extra = [f"{count} {what}" for what in ("truncated", "flagged", "dropped", "stale") if (count := complete[what])]
    extra += [f"{count} given up as {name}" for name, count in complete["failed"].items()]
    counts = f"{complete['tokens']:,} of {complete['budget']:,} tokens in {complete['responses']} responses"
    counts += f" ({', '.join(extra)})" if extra else ""
    if complete["reason"] == "budget_met":
        return f"complete: {counts}"
    return (
        f"its prompts are exhausted at {counts}: add prompts, raise samples_per_prompt, or lower the budget; "
        "it counts as complete until then"
    )


def _limits(dataset: Dataset, room=lambda prompt_tokens: None) -> Limits:
    return Limits(dataset.counting, dataset.settings["min_new_tokens"], dataset.prompts.facts["vocab_size"], room)


def _has_work(dataset: Dataset, ledger: Ledger) -> bool:
    """Whether anything is left to ask, found out without a server."""
    work = Work(dataset.prompts, dataset.answers, _limits(dataset), ledger, dataset.generated_ids, reached={})
    return work.waiting_count() > 0 or work.peek_fresh() is not None


class Worker:
    """One stretch of filling, from the first contact with the servers to the last answer."""

    def __init__(self, dataset: Dataset, ledger: Ledger, progress: Progress, engine_path: Path, rank: int):
        self.dataset, self.ledger, self.progress, self.rank = dataset, ledger, progress, rank
        self._engine_path = engine_path
        self._engine_seen = engine_path.stat().st_mtime_ns
        self.engine = read_engine(engine_path, dataset.name)
        self._folder = engine_path.parent / dataset.name
        self._signals = 0
        self._parent = os.getppid()
        self._outage_said_at = -50.0  # seconds into the outage
        self._ended_by: TemporaryFailure | None = None
        self.filler: Filler | None = None

    @property
    def is_told_to_stop(self) -> bool:
        """Whether a signal came, or snakemake is gone."""
        return self.filler is not None and self.filler.draining_since is not None

    async def run(self) -> None:
        """Fill until the budget is met, the prompts are exhausted or the run is told to stop.

        Raises TemporaryFailure where it stopped early, unless the budget was met on the way.
        """
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, main)
        try:
            async with self._servers() as filler:
                watch = asyncio.create_task(self._watch())
                try:
                    await filler.run()
                finally:
                    watch.cancel()
                    await asyncio.gather(watch, return_exceptions=True)
                if filler.draining_since is None and not self.dataset.is_met():
                    filler.giving_up.settle(self.dataset.tally.responses > 0)
        except asyncio.CancelledError:
            raise self._ended_by or TemporaryFailure(self.stopped()) from None
        except TemporaryFailure:
            if not self.dataset.is_met():
                raise
        finally:
            self.dataset.journal.sync()
            state = "complete" if self.dataset.is_met() else "stopped"
            self.progress.show(state, 0, self.filler.failures if self.filler else 0)
        if self.is_told_to_stop and not self.dataset.is_met():
            raise TemporaryFailure(self.stopped())

    def stopped(self) -> str:
        """The sentence that a run ends with that was told to stop."""
        tally = self.dataset.tally
        return (
            f"{self.dataset.name} was stopped at {tally.tokens:,} of {self.dataset.budget:,} tokens, "
            f"{tally.responses} responses; all are kept, run the same command to go on."
        )

    @contextlib.asynccontextmanager
    async def _servers(self) -> AsyncIterator[Filler]:
        """The pool of servers, one of them started here where the config says so, and the filler that asks them."""
        engine, dataset = self._within_open_files(self.engine), self.dataset
        protocol = protocol_of(engine["api"])
        async with contextlib.AsyncExitStack() as stack:
            session = await stack.enter_async_context(new_session(api_key(engine)))
            server = await self._launch(stack, engine) if engine["launch"] else None
            pool = Pool(
                protocol,
                session,
                [server.url] if server else engine["servers"],
                engine,
                folder=None if server else self._engine_path.parent,
                rank=self.rank,
                longest_answer=dataset.counting.max_new_tokens,
                say=self.progress.say,
                launched=server,
                known_model=dataset.known_model,
            )
            await stack.enter_async_context(pool)
            context = engine["context_length"] or pool.facts.context_length
            usable = context - protocol.CONTEXT_MARGIN if context else None
            dataset.note_servers(usable, pool.described())
            self.ledger.asked_with = dataset.asked_with
            work = Work(
                dataset.prompts,
                dataset.answers,
                _limits(dataset, lambda prompt_tokens: protocol.room(context, prompt_tokens)),
                self.ledger,
                dataset.generated_ids,
                dataset.read_in_flight(),
            )
            client = Client(session, protocol)
            self.filler = Filler(dataset, work, self.ledger, pool, client, protocol, engine, self.progress.say)
            pool.on_change, pool.on_hung = self.filler.wake.set, self.filler.give_up_hung
            yield self.filler

    def _within_open_files(self, engine: dict) -> dict:
        """The engine settings with a concurrency that this process has file descriptors for."""
        servers = max(1, len(engine["servers"]))
        allowed = connections_allowed(engine["concurrency"] * servers) // servers
        if allowed >= engine["concurrency"]:
            return engine
        self.progress.say(
            f"this shell may open too few files for a concurrency of {engine['concurrency']} on {servers} servers: "
            f"going on with {max(1, allowed)}; `ulimit -n` raises the limit"
        )
        return {**engine, "concurrency": max(1, allowed)}

    async def _launch(self, stack: contextlib.AsyncExitStack, engine: dict) -> Launched:
        """Start the server that the config names; it ends with `stack`."""
        main = asyncio.current_task()

        def on_given_up(sentence: str) -> None:
            self._stop(main, f"{self.dataset.name}: {sentence}")

        model, log = Path(self.dataset.settings["identity"]["model"]), self._folder / "server.log"
        server = launched(engine["launch"], model, log, engine, self.progress.say, on_given_up)
        return await stack.enter_async_context(server)

    def _on_signal(self, main: asyncio.Task) -> None:
        """The first signal drains, the second ends at once."""
        self._signals += 1
        if self.filler is None or self._signals > 1:
            self._stop(main, self.stopped())
            return
        patience = shown_duration(self.engine["drain_patience"])
        self.progress.say(f"stopping: answers may end for {patience}, then their pieces are kept (again to stop now)")
        self.filler.drain()

    def _stop(self, main: asyncio.Task, reason: str) -> None:
        """End the run at once, whether requests are in flight already or a server is still waited for."""
        if self.filler is not None:
            self.filler.stop_now(reason)
            return
        self._ended_by = TemporaryFailure(reason)
        main.cancel()

    async def _watch(self) -> None:
        """What goes on beside the answers. An error there ends the run: unwatched it would neither drain nor sync."""
        try:
            await self._watch_on()
        except Exception as error:
            self.filler.fail(error)

    async def _watch_on(self) -> None:
        """Syncs, progress, snakemake's life, changed servers and the end of patience, twice a second."""
        filler, aborted_at = self.filler, 0.0
        synced = noted = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            if now - synced >= SYNC_EVERY:
                synced = now
                await asyncio.to_thread(self.dataset.journal.sync)
            if now - noted >= NOTE_EVERY:
                noted = now
                with contextlib.suppress(TemporaryFailure):  # a run does not end for want of a better forecast
                    self.dataset.write_in_flight(filler.reached())
            if os.getppid() != self._parent and filler.draining_since is None:
                self.progress.say("the process that started this one is gone; stopping")
                filler.drain()
            if filler.draining_since is not None:
                drained_for = now - filler.draining_since
                if drained_for > self.engine["drain_patience"] + ABORT_PATIENCE:
                    filler.stop_now(self.stopped())
                elif drained_for > self.engine["drain_patience"] and now - aborted_at > ABORT_AGAIN_AFTER:
                    aborted_at = now
                    await filler.abort_in_flight()  # a hung server may take seconds over it
            filler.pool.tick(now)
            self._note_servers()
            self._give_up_on_outage()
            self._take_up_changed_engine()
            state = "draining" if filler.draining_since is not None else "filling"
            self.progress.show(state, len(filler.flights), filler.failures)

    def _note_servers(self) -> None:
        """Keep what servers that came, or came back, say of themselves."""
        servers, noted = self.filler.pool.described(), self.dataset.meta["servers"]
        if any(noted.get(url) != facts for url, facts in servers.items()):
            self.dataset.note_servers(self.dataset.meta["context_length"], servers)

    def _give_up_on_outage(self) -> None:
        """Say once a minute that no server answers; end the run when that has gone on for `outage_patience`."""
        down_for = self.filler.pool.all_down_for()
        if down_for and down_for > self.engine["outage_patience"]:
            self.filler.stop_now(
                f"{self.dataset.name}: no server has answered for {shown_duration(down_for)} "
                f"({self.filler.pool.troubles()}); all answers so far are kept, run the same command when one is up."
            )
        elif down_for and down_for > self._outage_said_at + 60.0:
            self._outage_said_at = down_for
            self.progress.say(
                f"no server answers ({self.filler.pool.troubles()}); waiting, at most "
                f"{shown_duration(self.engine['outage_patience'] - down_for)} more"
            )
        elif not down_for:
            self._outage_said_at = -50.0

    def _take_up_changed_engine(self) -> None:
        """Servers, concurrency and patience may change while the run goes on; the protocol may not."""
        with contextlib.suppress(FileNotFoundError):
            seen = self._engine_path.stat().st_mtime_ns
            if seen == self._engine_seen:
                return
            self._engine_seen = seen
            try:
                engine = read_engine(self._engine_path, self.dataset.name)
            except (ValueError, KeyError) as error:
                self.progress.say(f"{self._engine_path} cannot be read ({error}); going on with what it said before")
                return
            if engine["api"] != self.engine["api"] or engine["launch"] != self.engine["launch"]:
                self.progress.say("engine.api and engine.launch are taken up by the next run, the rest now")
                engine = {**engine, "api": self.engine["api"], "launch": self.engine["launch"]}
            self.engine = self.filler.engine = engine = self._within_open_files(engine)
            self.filler.pool.update(engine)


def read_engine(path: Path, dataset: str) -> dict:
    """The engine settings of one dataset from `results/engine.json`."""
    return engine_of(json.loads(path.read_text()), dataset)


def api_key(engine: dict) -> str | None:
    """The key for the servers, from the environment variable that the config names. UserError if that is not set."""
    name = engine["api_key_env"]
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise UserError(f"engine.api_key_env names {name}, but that environment variable is not set; export it.")
    return key
