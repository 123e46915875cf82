"""The real servers as fixtures: one lane after another, each server started once.

    python -m pytest tests/servers --lane sglang --lane router

Without --lane all four are run. A lane whose server is not installed fails; `installs.py` says how to install it.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import running
from servers.talk import Talk
from servers.tiny_model import make_gguf, make_model

EXTRA = {"vllm": ["--enable-scale-out"]}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", action="append", choices=list(running.LANES), help="a server to test; may be repeated")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lane" in metafunc.fixturenames:
        lanes = metafunc.config.getoption("lane") or list(running.LANES)
        metafunc.parametrize("lane", lanes, scope="session")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder, its GGUF within."""
    folder = make_model(tmp_path_factory.mktemp("model") / "tiny")
    make_gguf(folder / "tiny.gguf")
    return folder


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers write."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def sglang_server(model: Path, logs: Path) -> Iterator[running.Server]:
    """One SGLang for two lanes: its own, and as the first of the router's two workers."""
    started = running.sglang(model, logs / "sglang.log")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def server(lane: str, model: Path, logs: Path, request: pytest.FixtureRequest) -> Iterator[running.Server]:
    """The lane's server, with a key, 32 requests at a time and 32 waiting at most."""
    if lane == "sglang":
        yield request.getfixturevalue("sglang_server")
        return
    if lane == "router":
        first = request.getfixturevalue("sglang_server")
        second = running.sglang(model, logs / "second.log")
        started = running.router_before([first, second], logs / "router.log")
    else:
        started = running.LANES[lane](model, logs / f"{lane}.log", *EXTRA.get(lane, ()))
    yield started
    started.stop()


@pytest.fixture
def talk(lane: str, server: running.Server) -> Talk:
    """A client of the lane's server."""
    return Talk(server.url, running.API[lane])


@pytest.fixture
def chat(talk: Talk):
    """Runs `async def steps(session)` with an open session: chat(steps)."""

    async def run(steps):
        async with talk.session() as session:
            return await steps(session)

    return lambda steps: asyncio.run(asyncio.wait_for(run(steps), 300))
