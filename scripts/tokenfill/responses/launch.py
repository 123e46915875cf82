"""A server started for the job: on a free loopback port, started again after a crash, ended with the job."""

import asyncio
import contextlib
import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tokenfill.errors import UserError
from tokenfill.responses import guard

SCRIPTS = Path(__file__).parents[2]
SAY_AGAIN = 60.0
LOG_LINES_QUOTED = 3


class Launched:
    """A server that runs as long as its `async with` block. `crashes`: how often it has ended by itself.

    `on_given_up` is called with a sentence when it has crashed more than `restarts` times.
    """

    def __init__(
        self,
        command: str,
        model: Path,
        log: Path,
        *,
        restarts: int,
        say: Callable[[str], None],
        on_given_up: Callable[[str], None],
    ):
        self._command, self._model, self._log = command, model, log
        self._restarts, self._say, self._on_given_up = restarts, say, on_given_up
        self._guard: asyncio.subprocess.Process | None = None
        self.url = ""
        self.crashes = 0

    async def start(self) -> None:
        """Start it and wait until its port is open.

        Raises UserError where there is no such program, or where it ends before its port is open.
        """
        port = free_port()
        words, environment = command_line(self._command, self._model, port), child_environment()
        if shutil.which(words[0], path=environment["PATH"]) is None:
            raise UserError(f"engine.launch: there is no program '{words[0]}'; install it or mend the command.")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._guard = await asyncio.create_subprocess_exec(
            sys.executable,
            guard.__file__,
            str(self._log),
            *words,
            stdin=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        began = said_at = time.monotonic()
        while not await is_open(port):
            if self._guard.returncode is not None:
                raise UserError(
                    f"engine.launch: '{shlex.join(words)}' ended with status {self._guard.returncode} before it "
                    f"served; {self._log} ends with: {last_lines(self._log)}"
                )
            if time.monotonic() - said_at > SAY_AGAIN:
                said_at = time.monotonic()
                self._say(f"the server has been starting for {said_at - began:.0f} s (its log: {self._log})")
            await asyncio.sleep(0.05)
        self.url = f"http://127.0.0.1:{port}"

    async def keep_up(self) -> None:
        """Start it again each time it ends, until it has done so too often."""
        while True:
            status = await self._guard.wait()
            self.crashes += 1
            if self.crashes > self._restarts:
                break
            self._say(f"the server ended with status {status}; starting it again ({last_lines(self._log)})")
            try:
                await self.start()
            except UserError as error:
                self._on_given_up(str(error))
                return
        self._on_given_up(
            f"the launched server ended {self.crashes} times; {self._log} ends with: {last_lines(self._log)}"
        )

    async def stop(self) -> None:
        """End it and all it started."""
        if self._guard is None or self._guard.returncode is not None:
            return
        self._guard.stdin.close()
        try:
            await asyncio.wait_for(self._guard.wait(), 2 * guard.GRACE_SECONDS)
        except TimeoutError:
            self._guard.kill()


@contextlib.asynccontextmanager
async def launched(server: Launched) -> AsyncIterator[Launched]:
    """Start a server, keep it up meanwhile, and end it. Raises what `Launched.start` raises."""
    keeper = None
    try:
        await server.start()
        keeper = asyncio.create_task(server.keep_up())
        yield server
    finally:
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        await server.stop()


def command_line(command: str, model: Path, port: int) -> list[str]:
    """The words of a command, split as a shell does, with {model} and {port} filled in. No shell sees them."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"engine.launch: '{command}' cannot be read as a command ({error}).") from error
    return [word.replace("{model}", str(model)).replace("{port}", str(port)) for word in words]


def child_environment() -> dict[str, str]:
    """This process's environment, in which `python` is this Python and `tokenfill` can be imported."""
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environment.get("PATH", os.defpath)))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SCRIPTS), environment.get("PYTHONPATH"))))
    return environment


def free_port() -> int:
    """A loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def is_open(port: int) -> bool:
    """Whether something listens on a loopback port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def last_lines(log: Path) -> str:
    """The last lines of a log, on one line."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        lines = file.read().decode("utf-8", "replace").split("\n")
        return " | ".join([line.strip() for line in lines if line.strip()][-LOG_LINES_QUOTED:]) or "nothing"
    return "nothing"
