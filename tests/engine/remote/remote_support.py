"""Runs over real HTTP: `code-rl serve` on a thread of the test, a proxy that injects faults, and the run's records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiohttp import web

from code_rl.training import read_metrics
from tests.engine.remote.proxy import FaultyProxy, Loopback

RUN = {
    "model_name": "tiny", "recipe": "tiny", "executor": "embedded", "batch_size": "16", "group_size": "4",
    "eval_every": "-1", "max_tokens": "48", "max_steps": "5", "save_every": "1", "outage_timeout": "60",
}  # fmt: skip


def settings(url: str, log_path: Path, **changes: str) -> dict[str, str]:
    return {**RUN, "backend": url, "log_path": str(log_path), **changes}


def records(log_path: Path) -> list[dict[str, Any]]:
    """A run's metrics without times, rounded: sums in another order differ in the last bits."""
    return [
        {
            key: round(value, 5) if isinstance(value, float) else value
            for key, value in record.items()
            if "time/" not in key
        }
        for record in read_metrics(log_path)
    ]


def sampled(log_path: Path) -> list[list[list[int]]]:
    """The tokens of every completion, by group."""
    lines = (log_path / "rollouts.jsonl").read_text().splitlines()
    return [[completion["tokens"] for completion in json.loads(line)["completions"]] for line in lines]


class OtherServer(Loopback):
    """Answers every request with one handler."""

    def __init__(self, handler: Any) -> None:
        super().__init__()
        self._handler = handler

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        answer: web.StreamResponse = await self._handler(request)
        return answer


class EscapingProxy(FaultyProxy):
    """Names a file outside the folder among the addresses of a checkpoint's files."""

    async def _own(self, request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("external_weights_urls"):
            return None
        urls = {"../escaped": f"{self.url}/file"}
        return web.json_response({"urls": urls, "expires": "2100-01-01T00:00:00Z"})
