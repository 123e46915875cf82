"""A server that the job starts, restarts after a crash and ends. What it is asked, and its health, are not in here."""

import asyncio
import contextlib
import os
import select
import shlex
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from tokenfill.errors import TemporaryFailure, UserError
from tokenfill.responses.engines import protocol

HOST = "127.0.0.1"
SCRIPTS = Path(__file__).parents[3]
GUARD = Path(__file__).with_name("guard.py")
END_PATIENCE = 5.0  # seconds that a server has to end by itself after TERM
POLL_SECONDS = 0.1
SAY_EVERY = 30.0  # seconds between two lines about a server that still loads
RESTART_DELAY = 1.0  # seconds, doubled with each crash
QUOTED_LINES, QUOTED_CHARACTERS = 3, 400

Ready = Callable[[str], Awaitable[bool]]


class Launched:
    """One server on a free port of this machine. `async with` returns it ready and leaves nothing of it behind."""

    def __init__(
        self,
        command: str,
        model: Path,
        log: Path,
        *,
        ready: Ready,
        restarts: int,
        start_patience: float,
        say: Callable[[str], None],
        on_given_up: Callable[[str], None],
        end_patience: float = END_PATIENCE,
    ):
        """`command`: words as a shell would split them, with {model} and {port}. `log`: gets all that the server says.

        `ready(url)`: whether the server answers. `restarts`: how often it is started again after a crash.
        `start_patience`: seconds it may take to be ready for the first time; `end_patience`: seconds to end.
        `on_given_up` gets one sentence when it isn't started again.
        Raises UserError for a command that can't be split.
        """
        self.command, self.model, self.log = command, model, log
        self._words = split(command)
        self._ready, self._restarts, self._say, self._on_given_up = ready, restarts, say, on_given_up
        self._start_patience, self._end_patience = start_patience, end_patience
        self._port = free_port()
        self._crashes = 0
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._guard: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task | None = None
        self._log_start = 0

    @property
    def url(self) -> str:
        """Where the server is; it changes if a restart finds its port taken."""
        return f"http://{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """The server's process id, also its group's; None while none runs."""
        return self._pid

    @property
    def crashes(self) -> int:
        """How often the server has ended by itself, one that ended this very moment included."""
        just_now = self._pidfd is not None and bool(select.select([self._pidfd], [], [], 0)[0])
        return self._crashes + just_now

    async def __aenter__(self) -> "Launched":
        """Raises UserError if the command can't be run or ends, TemporaryFailure if it isn't ready in time."""
        try:
            await self._start()
            ended = asyncio.ensure_future(self._ended())
            try:
                await self._wait_until_ready(ended)
            except BaseException:
                ended.cancel()
                raise
        except BaseException:
            await self._end()
            raise
        self._keeper = asyncio.create_task(self._keep(ended))
        return self

    async def __aexit__(self, *_) -> None:
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        await self._end()

    async def _start(self) -> None:
        """Start the guard and by it the server. Raises UserError if the command can't be run."""
        words = [fill_in(word, self.model, self._port) for word in self._words]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            log.write(f"--- {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {shlex.join(words)}\n".encode())
            self._log_start = log.tell()
            self._guard = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(GUARD), str(self._end_patience), *words),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )
        word, _, told = (await self._guard.stdout.readline()).decode().strip().partition(" ")
        if word != "started":
            raise UserError(
                f"engine.launch: {words[0]} can't be run ({told or f'see {self.log}'}): "
                "install it, or name it by its whole path."
            )
        self._pid = int(told)
        with contextlib.suppress(AttributeError, OSError):  # not on every system; or ended already
            self._pidfd = os.pidfd_open(self._pid)

    async def _ended(self) -> str:
        """Waits for the server's end; how it ended, in words."""
        line = (await self._guard.stdout.readline()).decode().strip()
        return how_it_ended(line.removeprefix("ended ")) if line else "its guard process was killed"

    async def _wait_until_ready(self, ended: asyncio.Future) -> None:
        started = said_at = time.monotonic()
        self._say(f"starting a server: {self.command} (its log: {self.log})")
        while not await self._ready(self.url):
            if ended.done():
                raise UserError(f"engine.launch: the server did not start, {ended.result()}; {self._quoted()}.")
            now = time.monotonic()
            if now - started > self._start_patience:
                raise TemporaryFailure(
                    f"engine.launch: the server was not ready after {now - started:.0f} s (engine.outage_patience "
                    f"is how long it may take); {self._quoted()}."
                )
            if now - said_at >= SAY_EVERY:
                said_at = now
                self._say(f"the server has been starting for {now - started:.0f} s; {self._quoted(lines=1)}")
            await asyncio.wait([ended], timeout=POLL_SECONDS)

    async def _keep(self, ended: asyncio.Future) -> None:
        """Start the server again each time it ends, until that has been often enough."""
        while True:
            how = await ended
            self._forget()
            self._crashes += 1
            if self._crashes > self._restarts:
                times = "time" if self._crashes == 1 else "times"
                self._on_given_up(f"the launched server died {self._crashes} {times}, {how}; {self._quoted()}.")
                return
            self._say(
                f"the launched server died, {how}; {self._quoted(lines=1)}; "
                f"starting it again ({self._crashes} of {self._restarts})"
            )
            await self._guard.wait()
            await asyncio.sleep(RESTART_DELAY * 2 ** (self._crashes - 1))
            if not is_free(self._port):
                self._port = free_port()
            try:
                await self._start()
            except UserError as error:
                self._on_given_up(str(error))
                return
            ended = asyncio.ensure_future(self._ended())

    async def _end(self) -> None:
        """Have the guard end the server's group, and wait for that; the guard does it also if we are cut off here."""
        if self._guard:
            self._guard.stdin.close()
            await self._guard.wait()
        self._forget()

    def _forget(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._pid = self._pidfd = None

    def _quoted(self, lines: int = QUOTED_LINES) -> str:
        """The last lines that the server of now has said."""
        with open(self.log, "rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - (1 << 14)))
            said = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        if not said:
            return f"{self.log} has no word of it"
        return f"{self.log} ends with: {' | '.join(said[-lines:])[-QUOTED_CHARACTERS:]}"


def launched(
    command: str,
    model: Path,
    log: Path,
    engine: dict,
    say: Callable[[str], None],
    on_given_up: Callable[[str], None],
) -> Launched:
    """The server of `engine.launch`, by the settings of `engine`; ready once its protocol's page says so."""
    return Launched(
        command,
        model,
        log,
        ready=page_answers(protocol(engine["api"]).READY_PATH),
        restarts=engine["launch_restarts"],
        start_patience=engine["outage_patience"],
        say=say,
        on_given_up=on_given_up,
    )


def page_answers(path: str) -> Ready:
    """A test that a server's page at `path` is there: a server that still loads refuses, or answers 503 or 404."""

    async def ready(url: str) -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
                session.get(url + path) as response,
            ):
                return response.status in (200, 401, 403)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    return ready


def split(command: str) -> list[str]:
    """The words of a command, quotes taken as a shell takes them; no shell is run. Raises UserError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(
            f"engine.launch: {command!r} can't be split into words ({error}): balance its quotes."
        ) from None
    if not words:
        raise UserError("engine.launch: the command is empty; write one, or null and list servers instead.")
    return words


def fill_in(word: str, model: Path, port: int) -> str:
    """A word of the command with {model} and {port} replaced; other braces stay (JSON in an option, say)."""
    return word.replace("{model}", str(model)).replace("{port}", str(port))


def how_it_ended(status: str) -> str:
    """Words for the status of a process as `subprocess` gives it."""
    number = int(status)
    return f"ended by signal {-number}" if number < 0 else f"ended with status {number}"


def environment() -> dict[str, str]:
    """Ours, with this Python's programs first in PATH and tokenfill among its modules."""
    ours = dict(os.environ)
    for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", SCRIPTS)):
        ours[name] = os.pathsep.join(filter(None, [str(first), ours.get(name)]))
    return ours


def free_port() -> int:
    """A port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def is_free(port: int) -> bool:
    """Whether a server can listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
