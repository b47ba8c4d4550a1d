"""Runs the Python blocks of a page as a notebook does: in order, in one namespace, while an event loop runs. `python notebook.py PAGE`."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


async def run(page: str, text: str) -> None:
    for block in BLOCK.finditer(text):
        line = text[: block.start(1)].count("\n")
        code = compile("\n" * line + block[1], page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        cell = eval(code, vars(sys.modules["__main__"]))  # a coroutine where the block awaits
        if cell is not None:
            await cell


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[1]).read_text(encoding="utf-8")))
