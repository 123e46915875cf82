"""A client as small as can be, to try a protocol module on a server: it sends, reads and counts; it never retries."""

import asyncio
import json
import uuid
from dataclasses import dataclass

import aiohttp
from neutral_sampling import NEUTRAL
from servers.running import KEY
from tiny_tokenizer import ENDOFTEXT, IM_END, tokenizer
from tokenfill.responses import engines

GREEDY = NEUTRAL | {"temperature": 0.0, "stop_token_ids": [IM_END, ENDOFTEXT]}
SAMPLED = GREEDY | {"temperature": 1.0}


def prompt(text: str) -> list[int]:
    """The ids of a chat of one question."""
    return tokenizer().encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids


@dataclass
class Talk:
    """One server, spoken to in one protocol."""

    url: str
    api: str
    key: str | None = KEY

    @property
    def protocol(self):
        return engines.protocol(self.api)

    def session(self) -> aiohttp.ClientSession:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0, force_close=True))

    def body(self, ids, most, sampling=GREEDY, *, request_id=None, seed=None, model=None, stream=False) -> dict:
        return self.protocol.request(
            ids,
            max_new_tokens=most,
            sampling=sampling,
            seed=seed,
            request_id=request_id or uuid.uuid4().hex,
            model=model,
            stream=stream,
        )

    async def post(self, session, body: dict, path: str | None = None, url: str | None = None) -> tuple[int, str]:
        """(status, text) of a POST, to the protocol's own path if none is given."""
        async with session.post((url or self.url) + (path or self.protocol.COMPLETION_PATH), json=body) as response:
            return response.status, await response.text()

    async def reply(self, session, ids, most, sampling=GREEDY, **options) -> engines.Reply:
        """The parsed answer. Raises NotAnAnswer, or AssertionError for a status other than 200."""
        status, text = await self.post(session, self.body(ids, most, sampling, **options))
        assert status == 200, f"HTTP {status}: {text[:500]}"
        return self.protocol.parse(json.loads(text))

    async def pages(self, session, url: str | None = None) -> dict:
        """What the protocol's facts are read from."""
        pages = {}
        for path in self.protocol.FACTS_PATHS:
            async with session.get((url or self.url) + path) as response:
                text = await response.text()
                try:
                    pages[path] = (response.status, json.loads(text))
                except ValueError:
                    pages[path] = (response.status, text)
        return pages

    async def facts(self, session) -> engines.ServerFacts:
        """The server's facts, its workers' included."""
        facts = self.protocol.facts(await self.pages(session))
        behind = [self.protocol.facts(await self.pages(session, url)) for url in facts.workers]
        return engines.behind(facts, behind) if behind else facts

    async def aborted(self, session, ids, most, *, after: float) -> tuple[int, str]:
        """What a call answers that is aborted after so many seconds, at the server and at each that stands behind it.

        The abort is repeated until the call returns: a server passes over one that overtakes its request.
        """
        request_id = uuid.uuid4().hex
        path, body = self.protocol.abort(request_id)
        urls = (await self.facts(session)).workers or (self.url,)
        call = asyncio.create_task(self.post(session, self.body(ids, most, request_id=request_id)))
        await asyncio.wait([call], timeout=after)
        while not call.done():
            await asyncio.gather(*(self.post(session, body, path, url) for url in urls))
            await asyncio.wait([call], timeout=0.2)
        return await call

    async def long_prompt(self, session) -> list[int]:
        """A prompt whose greedy answer goes on for 400 ids at least."""
        for number in range(40):
            ids = prompt(f"question {number}?")
            if len((await self.reply(session, ids, 400)).output_ids) == 400:
                return ids
        raise AssertionError("no prompt has a long answer")
