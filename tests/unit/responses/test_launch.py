"""A launched server, with real processes: started, watched, started again, and never left behind."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from tokenfill.errors import TemporaryFailure, UserError
from tokenfill.responses.servers import launch
from tokenfill.responses.servers.launch import Launched, page_answers

# Serves its own words as JSON; `loading` answers 503 twice first, `deaf` ignores TERM, `helper` has a child.
SERVER = """
import json, os, signal, socket, subprocess, sys

words = sys.argv[1:]
if "deaf" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
helper = subprocess.Popen(["sleep", "600"]).pid if "helper" in words else None
refusals = 2 if "loading" in words else 0
listener = socket.create_server(("127.0.0.1", int(words[0])))
print("serving as", os.getpid(), flush=True)
while True:
    connection, _ = listener.accept()
    if b"/crash" in connection.recv(4096):
        print("out of memory", flush=True)
        os._exit(3)
    status = "503 Service Unavailable" if refusals > 0 else "200 OK"
    refusals -= 1
    body = json.dumps({"words": words, "pid": os.getpid(), "helper": helper}).encode()
    connection.sendall(b"HTTP/1.1 %s\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (status.encode(), len(body), body))
    connection.close()
"""
# A job that launches a server, tells its process id and then waits to be killed.
JOB = """
import asyncio, sys
sys.path[:0] = [{scripts!r}]
from pathlib import Path
from tokenfill.responses.servers.launch import Launched, page_answers

async def job():
    server = Launched(
        sys.argv[1], Path("model"), Path(sys.argv[2]), ready=page_answers("/"), restarts=0, start_patience=60,
        say=lambda line: None, on_given_up=lambda line: None, end_patience=0.3,
    )
    async with server:
        print(server.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(job())
"""
PYTHON = f"{shlex.quote(sys.executable)} -I -S"


@pytest.fixture
def new(tmp_path, monkeypatch):
    """Makes a Launched whose server is the script above, with more words behind the port."""
    monkeypatch.setattr(launch, "RESTART_DELAY", 0.0)
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    said, given_up = [], []

    def make(words: str = "", *, command: str | None = None, **settings) -> Launched:
        settings = {"restarts": 3, "start_patience": 60.0, "end_patience": 0.3, "ready": page_answers("/")} | settings
        command = command or f"{PYTHON} {shlex.quote(str(script))} {{port}} {words}"
        server = Launched(
            command,
            Path("models/my model"),
            tmp_path / "results" / "server.log",
            say=said.append,
            on_given_up=given_up.append,
            **settings,
        )
        server.said, server.given_up = said, given_up
        return server

    return make


async def page(server: Launched, path: str = "/") -> dict:
    def read():
        with urllib.request.urlopen(server.url + path, timeout=10) as answer:
            return json.load(answer)

    return await asyncio.to_thread(read)


async def crash(server: Launched) -> None:
    with contextlib.suppress(OSError):
        await page(server, "/crash")


async def until(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def in_one_run(server: Launched, what=page):
    """What the coroutine function `what` makes of the running server."""

    async def run():
        async with server:
            return await what(server)

    return asyncio.run(run())


def test_the_command_gets_model_and_port_and_its_quotes_are_a_shells(new):
    server = new("""--model {model} 'two words' --json '{{"a": 1}}' '$HOME' ';' rm""")
    answer = in_one_run(server)
    port = server.url.rpartition(":")[2]
    assert answer["words"] == [
        *(port, "--model", "models/my model", "two words", "--json", '{{"a": 1}}', "$HOME", ";", "rm")
    ]


def test_python_and_tokenfill_are_those_of_the_job(new):
    code = "import sys, tokenfill.errors; print(sys.prefix); print(tokenfill.__file__); sys.exit(9)"
    with pytest.raises(UserError) as error:
        in_one_run(new(command=f"python -c '{code}' {{port}}"))
    assert sys.prefix in str(error.value) and str(launch.SCRIPTS / "tokenfill") in str(error.value)


def test_it_is_ready_only_when_its_page_is(new):
    server = new("loading")
    in_one_run(server)
    assert server.said[0].startswith("starting a server")


def test_at_the_end_nothing_of_it_is_left(new):
    answer = in_one_run(new("helper"))
    assert not is_running(answer["pid"]) and not is_running(answer["helper"])


def test_one_that_ignores_term_is_killed(new):
    assert not is_running(in_one_run(new("deaf"))["pid"])


def test_an_error_in_the_job_ends_it_too(new):
    async def fail(server):
        raise KeyError(server.pid)

    with pytest.raises(KeyError) as error:
        in_one_run(new(), fail)
    assert not is_running(error.value.args[0])


def test_a_ctrl_c_at_the_job_does_not_reach_it(new):
    async def sessions(server):
        return {os.getsid(server.pid), os.getsid(server._guard.pid), os.getsid(0)}

    assert len(in_one_run(new(), sessions)) == 3


@pytest.mark.parametrize(("words", "number"), [("deaf helper", signal.SIGKILL), ("helper", signal.SIGTERM)])
def test_it_ends_with_a_job_that_is_killed(new, tmp_path, words, number):
    command = new(words).command
    job = tmp_path / "job.py"
    job.write_text(JOB.format(scripts=str(launch.SCRIPTS)))
    log = tmp_path / "server.log"
    with subprocess.Popen([sys.executable, job, command, log], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        children = psutil.Process(pid).children()
        assert is_running(pid)
        process.send_signal(number)
        process.wait()
    asyncio.run(until(lambda: not any(map(is_running, [pid, *(child.pid for child in children)]))))


def test_one_that_crashed_is_started_again_at_the_same_place(new):
    async def crash_and_ask(server):
        first, url = await page(server), server.url
        await crash(server)
        await until(lambda: server.pid not in (None, first["pid"]))
        await until(lambda: server.log.read_text().count("serving") == 2)
        assert not is_running(first["helper"])  # it could hold memory that the next one needs
        return url == server.url, server.crashes, first["pid"] != (await page(server))["pid"]

    server = new("helper")
    assert in_one_run(server, crash_and_ask) == (True, 1, True)
    assert "ended with status 3" in server.said[-1] and "out of memory" in server.said[-1]
    assert server.given_up == []


def test_a_crash_is_counted_before_the_keeper_has_seen_it(new):
    async def kill(server):
        os.kill(server.pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while not server.crashes and time.monotonic() < end:
            pass  # no other task gets a turn
        return server.crashes

    assert in_one_run(new(), kill) == 1


def test_one_that_crashes_too_often_is_given_up(new):
    async def crash_on(server):
        while not server.given_up:
            await crash(server)
            await asyncio.sleep(0.01)
        return server.crashes

    server = new(restarts=1)
    assert in_one_run(server, crash_on) == 2
    (sentence,) = server.given_up
    assert "died 2 times, ended with status 3" in sentence and sentence.endswith("out of memory.")


def test_one_that_does_not_start_is_told_with_its_last_words(new):
    code = "import sys; print(1); print(2); print(3); sys.exit(4)"
    with pytest.raises(UserError) as error:
        in_one_run(new(command=f"{PYTHON} -c '{code}' {{port}}"))
    assert "did not start, ended with status 4" in str(error.value) and "1 | 2 | 3" in str(error.value)


def test_what_earlier_runs_said_stays_in_the_log_and_out_of_the_sentence(new):
    server = new()
    in_one_run(server)
    with pytest.raises(UserError) as error:
        in_one_run(new(command="false {port}"))
    assert "serving as" not in str(error.value) and "has no word of it" in str(error.value)
    assert "serving as" in server.log.read_text() and server.log.read_text().count("---") == 2


def test_a_program_that_is_not_there_is_named(new):
    with pytest.raises(UserError, match=r"engine\.launch: no-such-program can't be run \(No such file"):
        in_one_run(new(command="no-such-program --port {port}"))


@pytest.mark.parametrize("command", ["serve 'half a quote", "  "])
def test_a_command_that_is_none_is_refused(new, command):
    with pytest.raises(UserError, match=r"engine\.launch"):
        new(command=command)


def test_one_that_loads_for_long_is_told_of_and_given_up_in_the_end(new, monkeypatch):
    monkeypatch.setattr(launch, "SAY_EVERY", 0.0)
    server = new(
        command=f"{PYTHON} -c 'import time; print(7, flush=True); time.sleep(60)' {{port}}", start_patience=0.4
    )
    with pytest.raises(TemporaryFailure, match="was not ready after 0 s"):
        in_one_run(server)
    assert server.said[-1].startswith("the server has been starting for 0 s")
    assert server.pid is None


def test_a_restart_that_finds_its_port_taken_moves(new, monkeypatch):
    async def kill(server):
        url = server.url
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: server.url != url)
        await until(lambda: server.log.read_text().count("serving") == 2)
        return await page(server)

    monkeypatch.setattr(launch, "is_free", lambda port: False)
    assert in_one_run(new(), kill)["words"]


def test_a_port_is_free_while_nothing_listens_on_it():
    port = launch.free_port()
    assert launch.is_free(port)
    with socket.create_server((launch.HOST, port)):
        assert not launch.is_free(port)
