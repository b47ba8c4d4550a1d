"""A real HTTP server on loopback that speaks Chat Completions, misbehaves as told, and counts its requests."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading

from aiohttp import web

RIGHT = "```python\nprint(sum(map(int, input().split())))\n```"


class ChatServer:
    """`script(body, attempt)` returns a text to answer with, an aiohttp response, or "drop" to cut the connection.

    `attempt` counts the requests with one seed, from 0.
    """

    def __init__(self, script=lambda body, attempt: RIGHT, port=0):
        self._script = script
        self.port = port
        self.bodies = []
        self.headers = []
        self.answered = 0
        self.attempts: collections.Counter[int] = collections.Counter()
        self._runner = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self):
        application = web.Application()
        application.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self):
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _answer(self, request):
        body = await request.json()
        attempt = self.attempts[body["seed"]]
        self.attempts[body["seed"]] += 1
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        answer = self._script(body, attempt)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer == "drop":
            request.transport.close()
            return web.Response()
        if isinstance(answer, web.Response):
            return answer
        self.answered += 1
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 11}})


@contextlib.asynccontextmanager
async def chat_server(script=lambda body, attempt: RIGHT):
    server = ChatServer(script)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class ServerThread(ChatServer):
    """One with a loop of its own, that can be stopped and started again on its port."""

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.again()
        return self

    def again(self):
        asyncio.run_coroutine_threadsafe(self.start(), self._loop).result(10)

    def away(self):
        asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result(10)

    def __exit__(self, *_):
        self.away()
        self._loop.call_soon_threadsafe(self._loop.stop)
