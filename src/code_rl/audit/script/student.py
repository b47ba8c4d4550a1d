"""A student's file in a process of its own: each call answered, refused by an exception, or given up on."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from code_rl.audit.process import Process, start
from code_rl.errors import ConfigError

FUNCTIONS = ("compute_advantages", "should_skip", "make_datum", "train_step")
UNCONFINED = "cannot be confined here"
_START_S = 120.0
_CALLS = Path(__file__).with_name("calls.py")


class SilentError(Exception):
    """A call that came to no end, or a file that cannot be loaded: the mistake, and words for what is said of it."""

    def __init__(self, mistake: str, **words: object) -> None:
        super().__init__(mistake)
        self.mistake, self.words = mistake, words


class Student:
    """The file, loaded anew after a call that came to no end. What cannot be loaded is SilentError too; ConfigError, where it cannot be confined."""

    def __init__(self, file: Path, python: str | None, timeout_s: float, confined: bool) -> None:
        self.file, self.has = file, frozenset[str]()
        self._python, self._timeout_s, self._confined = python or sys.executable, timeout_s, confined
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        """Nothing is loaded yet: `load`, or the first call, does."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def call(self, function: str, *arguments: Any) -> dict[str, Any]:
        """`value`, `after` (the arguments) and `events`; or `failed`, the exception in words. Raises SilentError."""
        process = self._process or await self.load()
        question = {"function": function, "arguments": arguments}
        try:
            return await asyncio.wait_for(process.request(question), self._timeout_s)
        except TimeoutError:
            await self._end()
            raise SilentError("endless", function=function, seconds=self._timeout_s) from None
        except EOFError as error:
            await self._end()
            raise SilentError("ended", function=function, why=error) from None

    async def load(self) -> Process:
        """Import the file. Raises SilentError, ConfigError."""
        spec = {"file": str(self.file)}
        self._process = process = await start(self._python, _CALLS, spec, self._confined, str(self.file.parent))
        try:
            ready = await process.ready(_START_S)
        except EOFError as error:
            await self._end()
            if UNCONFINED in str(error):
                raise ConfigError(f"script={self.file}: {error}") from None
            ready = {"failed": f"{error}; guard what trains by if __name__ == '__main__'"}
        if "failed" in ready:
            await self._end()
            raise SilentError("does_not_load", why=ready["failed"])
        self.has = frozenset(ready["has"])
        return process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.end()
