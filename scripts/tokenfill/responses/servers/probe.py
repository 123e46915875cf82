"""What a server says of itself, read over HTTP, and whether it is the one the run needs. Nothing is decided here."""

import asyncio
import math

import aiohttp
import orjson

from tokenfill.responses.client import without_key
from tokenfill.responses.engines import ServerFacts, WrongServer, behind, error_message, wrong_model

_TIMEOUT = aiohttp.ClientTimeout(total=30)


class NotReady(Exception):
    """The server cannot be asked now; the message is a few words."""


async def read_facts(session: aiohttp.ClientSession, protocol, url: str) -> ServerFacts:
    """What the server at `url` says of itself and of those behind it. Raises NotReady or WrongServer."""
    status, body = await _get(session, url, protocol.READY_PATH)
    if status >= 500 or status in (408, 429):
        raise NotReady(f"HTTP {status}: {error_message(status, body)}")
    answers = await asyncio.gather(*(_get(session, url, path) for path in protocol.FACTS_PATHS))
    facts = protocol.facts(dict(zip(protocol.FACTS_PATHS, answers, strict=True)))
    if facts.workers:
        workers = await asyncio.gather(
            *(read_facts(session, protocol, worker) for worker in facts.workers), return_exceptions=True
        )
        facts = behind(facts, [worker for worker in workers if isinstance(worker, ServerFacts)])
    return facts


async def _get(session: aiohttp.ClientSession, url: str, path: str) -> tuple[int, object]:
    """(status, JSON or text) of a page. Raises NotReady where there is no answer."""
    try:
        async with session.get(url + path, timeout=_TIMEOUT) as response:
            raw = without_key(session, await response.read())
            status = response.status
    except TimeoutError as error:
        raise NotReady(f"no answer within {_TIMEOUT.total:.0f} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise NotReady(words(error)) from error
    try:
        return status, orjson.loads(raw)
    except orjson.JSONDecodeError:
        return status, raw.decode("utf-8", "replace")


def words(error: BaseException) -> str:
    """A few words for a broken connection."""
    cause = getattr(error, "os_error", None) or error
    return getattr(cause, "strerror", None) or str(cause) or type(error).__name__


def same_model(one: str, other: str) -> bool:
    """Whether two names stand for one model: the last part decides, since servers load it from different folders."""
    return _last_part(one) == _last_part(other)


def _last_part(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


class Prober:
    """Reads servers' facts and holds them against what the run has seen so far.

    `served_model`: the name that requests carry, or None. `model`: what every server must have; the first one to tell
    decides where the journal holds no answers yet. `context_length`: what the run counts on, set once it has begun.
    """

    context_length: int | None = None

    def __init__(self, session: aiohttp.ClientSession, protocol, served_model: str | None, known_model: str | None):
        self._session, self._protocol = session, protocol
        self.served_model, self.model = served_model, known_model
        self._told_by = "the answers so far are of"

    async def look(self, url: str) -> ServerFacts:
        """The facts of the server at `url`. Raises NotReady, or WrongServer if it is not one of this run."""
        facts = await read_facts(self._session, self._protocol, url)
        objection = wrong_model(facts, self.served_model)
        if objection:
            raise WrongServer(objection)
        if self.served_model is None and facts.model:
            if self.model and not same_model(facts.model, self.model):
                raise WrongServer(
                    f"serves the model {facts.model}, but {self._told_by} {self.model}: take that server out of "
                    "engine.servers, or start it with the right model."
                )
            if not self.model:
                self.model, self._told_by = facts.model, f"{url} serves"
        if (facts.context_length or math.inf) < (self.context_length or 0):
            raise WrongServer(
                f"has a context of {facts.context_length} tokens, but this run began with {self.context_length}: take "
                "it out of engine.servers, or stop the run and start it again with both."
            )
        return facts
