"""A scripted inference server on loopback for tests: SGLang, vLLM and llama.cpp, exact answers, faults on
demand.

In a test:       async with ScriptedServer({"length": {"fixed": 20}}) as server: ... server.url, server.log
From other code: with ThreadedServer(script) as server: ...
As a command:    python tests/scripted_server.py --port 18001 --script script.json --log requests.jsonl

The keys of a script are DEFAULTS in scripted_model.py; its faults are explained in scripted_faults.py.
GET /_log, GET /_stats and POST /_script (keys to change while it runs) are for the test's own eyes.
"""

import argparse
import asyncio
import contextlib
import json
import os
import threading
import time
from pathlib import Path

import orjson
from aiohttp import web
from scripted_faults import pick_fault, spoil
from scripted_model import Decoder, Model, complete_script, ids_hash, text_of
from scripted_protocols import PROTOCOLS, Answer, Refused, models_page

CONNECTION_FAULTS = {"hang", "reset", "empty", "html", "die"}


class ScriptedServer:
    """One server. `log` holds a dict a request, in order of arrival; update() changes its script while it
    runs.
    """

    def __init__(self, script: dict | None = None, *, port: int = 0, log_path=None, may_exit: bool = False):
        self.script = complete_script(script or {})
        self.port, self.log, self.url = port, [], ""
        self._log_file = open(log_path, "ab") if log_path else None  # noqa: SIM115
        self._may_exit = may_exit
        self._used: dict[int, int] = {}
        self._attempts: dict[str, int] = {}
        self._live: dict[str, object] = {}
        self._inflight = self._max_inflight = self._tokens = 0
        self._busy, self._busy_since = 0.0, time.monotonic()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "ScriptedServer":
        self.model = Model(self.script)
        self.decoder = Decoder(self.script["rate"], self.script["delay"], self.script["capacity"])
        self.started = time.time()
        await self.up()
        return self

    async def __aexit__(self, *_) -> None:
        await self.down()
        if self._log_file:
            self._log_file.close()

    async def up(self) -> None:
        """Listen, again on the same port after down()."""
        app = web.Application(client_max_size=1 << 28)
        for protocol in PROTOCOLS.values():
            app.router.add_post(protocol.path, self._generate(protocol))
            if protocol.abort_path:
                app.router.add_post(protocol.abort_path, self._abort(protocol))
        app.router.add_post("/_script", self._set)
        app.router.add_get("/{path:.*}", self._get)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, backlog=4096)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def down(self) -> None:
        """Stop listening and drop every connection, as a server that crashed."""
        runner, self._runner = self._runner, None
        if runner:
            for connection in list(runner.server.connections):
                if connection.transport:
                    connection.transport.abort()
            await runner.cleanup()

    def update(self, **changes) -> None:
        """Change keys of the script while it runs; new faults start to count anew."""
        self.script.update({key: complete_script(changes)[key] for key in changes})
        if "faults" in changes:
            self._used.clear()
        self.decoder.rate, self.decoder.delay = self.script["rate"], self.script["delay"]
        self.decoder.capacity = self.script["capacity"]

    def stats(self) -> dict:
        self._count_busy(0)
        ended = [entry for entry in self.log if entry["status"] is not None]
        statuses = [str(entry["status"]) for entry in ended]
        return {
            "requests": len(self.log),
            "inflight": self._inflight,
            "max_inflight": self._max_inflight,
            "max_running": self.decoder.max_running,
            "queued": len(self.decoder.queue),
            "tokens": self._tokens,
            "busy_seconds": round(self._busy, 3),
            "seconds": round(time.time() - self.started, 3),
            "by_status": {status: statuses.count(status) for status in sorted(set(statuses))},
        }

    def _count_busy(self, step: int) -> None:
        now = time.monotonic()
        self._busy += self._inflight * (now - self._busy_since)
        self._busy_since = now
        self._inflight += step
        self._max_inflight = max(self._max_inflight, self._inflight)

    # the three generation paths

    def _generate(self, protocol):
        async def handle(request: web.Request) -> web.StreamResponse:
            raw = await request.read()
            entry = self._entry(request.path)
            self._count_busy(+1)
            try:
                try:
                    return await self._answer(protocol, request, orjson.loads(raw), entry)
                except Refused as refused:
                    entry["status"] = refused.status
                    return web.json_response(protocol.error(refused.status, refused.message), status=refused.status)
            except asyncio.CancelledError:
                entry["status"] = entry["status"] or 499  # the client went away
                raise
            finally:
                self._count_busy(-1)
                self._end_entry(entry)

        return handle

    def _entry(self, path: str) -> dict:
        entry = {
            "n": len(self.log) + 1,
            "t": round(time.time(), 4),
            "path": path,
            "inflight": self._inflight + 1,
        }
        entry |= {
            "status": None,
            "fault": None,
            "answer_len": 0,
            "finish": None,
            "rid": None,
            "attempt": None,
        }
        self.log.append(entry)
        return entry

    def _end_entry(self, entry: dict) -> None:
        entry["seconds"] = round(time.time() - entry["t"], 4)
        if self._log_file:
            self._log_file.write(orjson.dumps(entry) + b"\n")
            self._log_file.flush()

    async def _answer(self, protocol, request: web.Request, body: dict, entry: dict) -> web.StreamResponse:
        if not self._authorized(request):
            raise Refused(401, "Unauthorized")
        raw_ids = body.get("input_ids", body.get("prompt"))
        raw_ids = raw_ids if isinstance(raw_ids, list) else []
        known = all(type(i) is int and abs(i) < 1 << 31 for i in raw_ids)
        key = ids_hash(raw_ids) if known else repr(raw_ids)
        attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        entry |= {
            "ids": key,
            "ids_len": len(raw_ids),
            "attempt": attempt,
            "rid": body.get("rid", body.get("request_id")),
        }
        if known:
            entry["prompt"], entry["position"] = self.model.locate(raw_ids)
        entry["asked"] = {k: v for k, v in body.items() if k not in ("input_ids", "prompt")}
        age, seed = time.time() - self.started, self.script["seed"]
        seen = {
            "n": entry["n"],
            "ids": raw_ids,
            "attempt": attempt,
            "age": age,
            "path": request.path,
            "seed": seed,
        }
        do = pick_fault(self.script["faults"], self._used, seen)
        fault = entry["fault"] = do.get("fault", do.get("status"))
        if "status" in do:
            if do.get("delay"):
                await asyncio.sleep(do["delay"])
            entry["status"] = do["status"]
            headers = {"Retry-After": str(do["retry_after"])} if "retry_after" in do else {}
            text = do.get("body", json.dumps(protocol.error(do["status"], "as scripted")))
            return web.Response(status=do["status"], text=text, headers=headers)
        if fault in CONNECTION_FAULTS:
            return await self._connection_fault(fault, request, entry, do)
        asked = protocol.read(body, self.script)
        if any(not 0 <= i < self.script["vocab_size"] for i in asked.ids):
            if self.script["bad_ids_kill"]:
                return await self._connection_fault("die", request, entry, do)
            raise Refused(400, "a token id is out of vocabulary")
        if asked.rid and asked.rid in self._live:
            raise Refused(400, f"request id {asked.rid} is in use")
        waiting, limit = len(self.decoder.queue), self.script["max_queued"]
        full = self.script["capacity"] is not None and len(self.decoder.running) >= self.script["capacity"]
        if limit is not None and full and waiting >= limit:
            raise Refused(503, "the request queue is full")
        return await self._decode(protocol, request, asked, entry, do)

    async def _decode(self, protocol, request, asked, entry: dict, do: dict) -> web.StreamResponse:
        prompt, position = entry["prompt"], entry["position"]
        whole = do.get("ids") or self.model.rest(prompt, position)
        if "length" in do and "ids" not in do:
            whole = [
                *(whole[:-1] * (do["length"] // max(1, len(whole) - 1) + 1))[: do["length"] - 1],
                self.script["eos"],
            ]
        stop_at = (
            next((i + 1 for i, t in enumerate(whole) if t in asked.stop_ids), len(whole))
            if asked.stop_ids
            else len(whole)
        )
        ids = whole[: min(stop_at, asked.max_tokens)]
        finish = "stop" if ids[-1] == self.script["eos"] or ids[-1] in asked.stop_ids else "length"
        if do.get("fault") == "cycle":
            ids, finish = ([65, 66, 67, 32] * (asked.max_tokens // 4 + 1))[: asked.max_tokens], "length"
        entry["max_tokens"] = asked.max_tokens
        slot = self.decoder.submit(len(ids), do.get("delay"))
        if asked.rid:
            self._live[asked.rid] = slot
        stream = None
        try:
            if asked.stream:
                stream = await self._stream(protocol, request, slot, ids)
            produced = await slot.ended
        finally:
            self.decoder.end(slot)
            if asked.rid:
                self._live.pop(asked.rid, None)
        if produced < len(ids):
            ids, finish = ids[:produced], "abort"
        if do.get("fault") == "abort":
            ids, finish = ids[: len(ids) // 2], "abort"
        answer = Answer(ids, text_of(ids), finish, len(asked.ids), len(ids))
        answer.truncated = finish == "length" and len(asked.ids) + len(ids) >= self.script["context_length"]
        spoil(answer, do, asked.ids, self.script["vocab_size"])
        self.model.delivered(asked.ids, ids, prompt, position)
        self._tokens += len(ids)
        entry |= {"status": 200, "answer_len": len(ids), "finish": answer.finish}
        payload = orjson.dumps(protocol.answer(asked, answer, self.script))
        if stream is not None:
            await stream.write(b"data: " + payload + b"\n\n")
            return stream
        if do.get("fault") == "cut":
            return await self._cut(request, payload)
        return web.Response(body=payload, content_type=do.get("content_type", "application/json"))

    async def _stream(self, protocol, request, slot, ids: list[int]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent = 0
        while sent < len(ids):
            await asyncio.wait([slot.ended], timeout=0.02)
            produced = slot.ended.result() if slot.ended.done() else self.decoder.progress(slot)
            if produced > sent:
                chunk = orjson.dumps(protocol.chunk(ids[sent:produced], text_of(ids[sent:produced])))
                await response.write(b"data: " + chunk + b"\n\n")
                sent = produced
            if slot.ended.done():
                break
        return response

    async def _connection_fault(self, fault: str, request, entry: dict, do: dict) -> web.StreamResponse:
        if fault == "hang":
            await asyncio.sleep(do.get("seconds", 1e6))
        if do.get("delay"):
            await asyncio.sleep(do["delay"])
        if fault == "empty":
            entry["status"] = 200
            return web.Response(body=b"", content_type="application/json")
        if fault == "html":
            entry["status"] = 200
            return web.Response(text="<html><body>Bad gateway</body></html>", content_type="text/html")
        entry["status"] = 0
        if fault == "die":
            self._end_entry(entry)
            if self._may_exit:
                os._exit(1)
            self._down_task = asyncio.get_running_loop().create_task(self.down())
        request.transport.abort()
        return web.Response()

    async def _cut(self, request, payload: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(payload)), "Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(payload[: len(payload) // 2])
        await asyncio.sleep(0.001)
        request.transport.abort()
        return response

    # everything else

    def _abort(self, protocol):
        async def handle(request: web.Request) -> web.Response:
            body = orjson.loads(await request.read() or b"{}")
            for rid in protocol.aborts(body, list(self._live)):
                self.decoder.end(self._live[rid])
            return web.Response(status=200)

        return handle

    def _authorized(self, request: web.Request) -> bool:
        key = self.script["api_key"]
        return key is None or request.headers.get("Authorization") == f"Bearer {key}"

    async def _get(self, request: web.Request) -> web.Response:
        if request.path == "/_log":
            return web.json_response(self.log)
        if request.path == "/_stats":
            return web.json_response(self.stats())
        if request.path in ("/health", "/health_generate", "/v1/health", "/readiness"):
            status = self.script["health"]
            return web.json_response({"status": "ok" if status == 200 else "unavailable"}, status=status)
        pages = {"/v1/models": models_page(self.script)}
        for protocol in PROTOCOLS.values():
            pages |= protocol.info(self.script)
        if request.path not in pages:
            return web.json_response({"detail": "Not Found"}, status=404)
        if not self._authorized(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response(pages[request.path])

    async def _set(self, request: web.Request) -> web.Response:
        self.update(**orjson.loads(await request.read()))
        return web.json_response({})


class ThreadedServer:
    """A ScriptedServer on an event loop of its own, for tests that are not async or start other processes."""

    def __init__(self, script: dict | None = None, **options):
        self._server = ScriptedServer(script, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "ThreadedServer":
        self._thread.start()
        self._call(self._server.__aenter__())
        return self

    def __exit__(self, *_) -> None:
        self._call(self._server.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    url = property(lambda self: self._server.url)
    log = property(lambda self: list(self._server.log))

    def up(self) -> None:
        self._call(self._server.up())

    def down(self) -> None:
        self._call(self._server.down())

    def stats(self) -> dict:
        async def read():
            return self._server.stats()

        return self._call(read())

    def update(self, **changes) -> None:
        async def change():
            self._server.update(**changes)

        self._call(change())


async def serve(script: dict, port: int, log_path: str | None) -> None:
    async with ScriptedServer(script, port=port, log_path=log_path, may_exit=True) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Scripted inference server; prints its URL when it listens.")
    arguments.add_argument("--port", type=int, default=0)
    arguments.add_argument("--script", help="JSON file, or JSON itself")
    arguments.add_argument("--log", help="request log, JSON lines")
    given = arguments.parse_args()
    source = given.script or "{}"
    text = source if source.lstrip().startswith("{") else Path(source).read_text()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(json.loads(text), given.port, given.log))
