"""One request to one server over HTTP: out goes a body, back comes a reply or a failure of a known class."""

import asyncio
import contextlib
import email.utils
import time

import aiohttp
import orjson

from tokenfill.responses.engines import NotAnAnswer, Reply, error_message
from tokenfill.responses.failures import Failure, of_status

# All three servers close a connection that has been idle for 5 s; one that closes as we write looks like a crash.
IDLE_SECONDS = 4
CONNECT_SECONDS = 30


def new_session(api_key: str | None) -> aiohttp.ClientSession:
    """A session whose number of connections is bounded by the requests in flight alone.

    There is no time limit on an answer: how long one may take follows from the servers' speed, and the pool
    tells a server that hangs.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        auto_decompress=True,
    )


class Client:
    """Speaks one protocol (a module of `engines`) through a session."""

    def __init__(self, session: aiohttp.ClientSession, protocol):
        self._session = session
        self._protocol = protocol

    async def ask(self, url: str, body: dict) -> Reply:
        """The reply to one request. Raises Failure with its class; `failure.piece` is what an abort brought back."""
        raw = orjson.dumps(body)
        try:
            async with self._session.post(
                url + self._protocol.COMPLETION_PATH, data=raw, headers={"Content-Type": "application/json"}
            ) as response:
                status, retry_after = response.status, _seconds(response.headers.get("Retry-After"))
                answer = await response.read()
        except aiohttp.ClientPayloadError as error:
            raise Failure("malformed", f"the answer broke off: {error}") from error
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise Failure("connection", str(error) or type(error).__name__) from error
        if status != 200:
            text = answer.decode("utf-8", "replace")
            raise Failure(of_status(status).name, error_message(status, text), status, retry_after)
        try:
            parsed = orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise Failure("malformed", f"HTTP 200, but no JSON: {answer[:80]!r}", status) from error
        try:
            return self._protocol.parse(parsed)
        except NotAnAnswer as problem:
            failure = Failure(_CLASS_OF[problem.kind], str(problem), status)
            failure.piece = problem.reply
            raise failure from problem

    async def abort(self, url: str, request_id: str) -> None:
        """Ask a server to end a request early; whether it did shows in the answer to that request."""
        target = self._protocol.abort(request_id)
        if target is None:
            return
        path, body = target
        with contextlib.suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError):
            async with self._session.post(url + path, json=body, timeout=aiohttp.ClientTimeout(total=10)) as response:
                await response.read()


_CLASS_OF = {"abort": "aborted", "empty": "not_an_answer", "malformed": "malformed", "nan": "nan"}


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After as seconds from now: it may be a number or a date (RFC 9110, section 10.2.3)."""
    if not retry_after:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(retry_after))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    return None
