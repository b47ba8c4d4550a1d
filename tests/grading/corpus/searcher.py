"""Canaries and the program that searches for them.

A canary is text of four pieces; each piece is a tag of this run and twelve random characters. The searcher knows the tag and the digest of each
piece, so that it recognizes a secret that it never held. One piece is enough: freed memory loses its first bytes.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import string
from collections.abc import Iterable
from textwrap import dedent
from typing import Any

import aiohttp

from code_rl.grading.sandbox import Job, Limits, Status, StdinInput
from code_rl.grading.sandbox.executor import Execution
from tests.grading.corpus.programs import WALKER, WALKS
from tests.stand_in import StandIn

TAG = "".join(secrets.choice(string.ascii_letters) for _ in range(5))
PIECES, LETTERS = 4, 12
LIMITS = Limits(cpu_s=60.0, wall_s=200.0, memory_mb=2048)
SIZES = (4, 40, 400, 1200)
"""How often a field repeats its canary: what is freed is overwritten by things of its own size."""


def source(*parts: str) -> str:
    """One program of several texts, each freed of its own indentation."""
    return "\n".join(dedent(part).strip("\n") for part in parts) + "\n"


_EVERYWHERE = ("memory_of_others", "descriptors", "descriptor_files", "files", "environments")
_AT_NONE = ("descriptors", "here")
_HERE = """
    def blobs():
        for name in os.listdir("."):
            if os.path.isfile(name):
                yield name.encode("utf-8", "replace") + open(name, "rb").read()
    """
_MEMORY = """
    def blobs():
        try:
            regions = None if SWEEP else listed(True)
        except OSError:
            regions = None
        return texts(list(pages(swept(), can_write)) if regions is None else regions)
    """
_SEARCH = """
    import hashlib
    found = set()
    def look(blob, where):
        for encoding, width in (("latin-1", 1), ("utf-16-le", 2), ("utf-32-le", 4)):
            mark = TAG.encode(encoding)
            at = blob.find(mark)
            while at >= 0:
                piece = bytes(blob[at : at + (len(TAG) + LETTERS) * width])
                name = KNOWN.get(hashlib.sha256(piece[::width]).hexdigest())
                if name:
                    found.add((name, where))
                at = blob.find(mark, at + 1)
    def search():
        for where, text in WALKS.items():
            names = dict(globals())
            try:
                exec(text, names)
                for blob in names["blobs"]():
                    look(blob, where)
            except (OSError, AttributeError):
                pass
        for name, where in sorted(found):
            print("FOUND", name, where)
        print("searched", flush=True)
    """
SEARCH = "search()\n"


class Canaries:
    """The canaries of one test, by the name of the field that each is planted in."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def new(self, name: str) -> str:
        """A canary for the field `name`; a field keeps its canary."""
        if name in self._texts:
            return self._texts[name]
        letters = string.ascii_letters + string.digits
        pieces = ("".join(secrets.choice(letters) for _ in range(LETTERS)) for _ in range(PIECES))
        self._texts[name] = "".join(TAG + piece for piece in pieces)
        return self._texts[name]

    def field(self, name: str, copies: int = 40) -> str:
        """As `new`, many times over, a line each."""
        return "\n".join([self.new(name)] * copies)

    def searcher(self, *parts: str, sweep: bool = False, at_none: bool = False) -> str:
        """A program that defines `search()`, which looks everywhere and prints `FOUND name where`; then `parts`.

        `sweep`: without /proc. `at_none`: only the places that no level may show, its own memory, descriptors and working directory.
        """
        walks = {"memory": source(_MEMORY)}
        for name in _AT_NONE if at_none else _EVERYWHERE:
            walks[name] = source(_HERE if name == "here" else WALKS[name].removeprefix(WALKER))
        facts = f"TAG, LETTERS, SWEEP = {TAG!r}, {LETTERS}, {sweep}\nKNOWN = {self._known()!r}\nWALKS = {walks!r}\n"
        return source(WALKER, facts, _SEARCH, *parts)

    def _known(self) -> dict[str, str]:
        known = {}
        for name, text in self._texts.items():
            size = len(TAG) + LETTERS
            for at in range(0, len(text), size):
                known[hashlib.sha256(text[at : at + size].encode()).hexdigest()] = name
        return known


def found(executions: Iterable[Execution]) -> list[set[tuple[str, str]]]:
    """The finds of each searching test, as (field, where). Raises AssertionError for a test that did not search to its end."""
    sets = []
    for execution in executions:
        lines = execution.stdout.decode("utf-8", "replace").splitlines()
        assert "searched" in lines, (execution.status, execution.detail, execution.stderr[-500:])
        sets.append({(line.split()[1], line.split()[2]) for line in lines if line.startswith("FOUND ")})
    return sets


class Posts(StandIn):
    """An executor of scripts by bare requests to a server of ours, one for each test."""

    description = "bare requests"

    def __init__(self, url: str) -> None:
        self._url, self._session = url, aiohttp.ClientSession()

    async def run(self, job: Job):
        files = {name: base64.b64encode(data).decode() for name, data in job.files.items()}
        for case in job.cases:
            assert isinstance(case, StdinInput)
            body: dict[str, Any] = {
                "language": "python",
                "code": job.code,
                "stdin": case.stdin.decode(),
                "files": files,
            }
            body |= {"run_timeout": 60, "memory_limit_MB": job.limits.memory_mb}
            async with self._session.post(self._url, json=body) as answer:
                done = (await answer.json())["run_result"]
            status = Status.OK if done["return_code"] == 0 else Status.RUNTIME_ERROR
            yield Execution(status, done["stdout"].encode(), stderr=done["stderr"].encode())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._session.close()
