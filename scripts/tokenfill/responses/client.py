"""One request to one server over HTTP: out goes a body, back comes a reply or a failure of a known class."""

import contextlib
import email.utils
import resource
import time
from collections.abc import Iterable

import aiohttp
import orjson

from tokenfill.responses.engines import NotAnAnswer, Reply, error_message
from tokenfill.responses.failures import Failure, of_status

# All three servers close a connection that has been idle for 5 s; one that closes as we write looks like a crash.
IDLE_SECONDS = 4
CONNECT_SECONDS = 30
FILES_BESIDE_CONNECTIONS = 64


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


def without_key(session: aiohttp.ClientSession, said: bytes) -> bytes:
    """What a server said without the key that we send it, which some quote in their complaints."""
    key = session.headers.get("Authorization", "").removeprefix("Bearer ").encode()
    return bytes(said).replace(key, b"***") if key else bytes(said)


def connections_allowed(wanted: int) -> int:
    """How many of the `wanted` connections this process may open, after raising its own limit as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + FILES_BESIDE_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - FILES_BESIDE_CONNECTIONS))


class Client:
    """Speaks one protocol (a module of `engines`) through a session."""

    def __init__(self, session: aiohttp.ClientSession, protocol):
        self._session = session
        self._protocol = protocol
        self._streams: dict[str, aiohttp.ClientResponse] = {}

    async def ask(self, url: str, body: dict, request_id: str) -> Reply:
        """The reply to one request. Raises Failure with its class; its `piece` is what an abort brought back."""
        is_stream, received = bool(body.get("stream")), bytearray()
        try:
            async with self._session.post(
                url + self._protocol.COMPLETION_PATH, data=orjson.dumps(body), headers=_JSON
            ) as response:
                status, retry_after = response.status, _seconds(response.headers.get("Retry-After"))
                if is_stream and status == 200:
                    self._streams[request_id] = response
                    async for chunk in response.content.iter_any():
                        received += chunk
                else:
                    received += await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if is_stream and received:
                return self._parse(self._protocol.join(bytes(received)))  # raises "aborted", with the piece
            if isinstance(error, aiohttp.ClientPayloadError):
                raise Failure("malformed", f"the answer broke off: {error}") from error
            failure = Failure("connection", str(error) or type(error).__name__)
            failure.was_sent = not isinstance(error, aiohttp.ClientConnectorError)
            raise failure from error
        finally:
            self._streams.pop(request_id, None)
        if status != 200:
            message = error_message(status, without_key(self._session, received).decode("utf-8", "replace"))
            raise Failure(of_status(status).name, message, status, retry_after)
        if is_stream:
            return self._parse(self._protocol.join(bytes(received)))
        try:
            return self._parse(orjson.loads(received))
        except orjson.JSONDecodeError as error:
            raise Failure("malformed", f"HTTP 200, but no JSON: {bytes(received[:80])!r}", status) from error

    def _parse(self, body: object) -> Reply:
        try:
            return self._protocol.parse(body)
        except NotAnAnswer as problem:
            failure = Failure(_CLASS_OF[problem.kind], problem.message, 200)
            failure.piece = problem.reply
            raise failure from problem

    async def abort(self, urls: Iterable[str], request_id: str) -> None:
        """End a request early at any of these servers. What it had come to shows in the answer to the request."""
        if request_id in self._streams:
            self._streams[request_id].close()
            return
        target = self._protocol.abort(request_id)
        for url in urls if target else ():
            path, body = target
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with self._session.post(url + path, json=body, timeout=_ABORT_TIMEOUT) as response:
                    await response.read()


_JSON = {"Content-Type": "application/json"}
_ABORT_TIMEOUT = aiohttp.ClientTimeout(total=10)
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
