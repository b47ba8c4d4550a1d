"""Readers of one row as readers of many, as tests over whole files want them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from code_rl.data.sources import humaneval, leetcode, livecodebench, mbpp
from code_rl.data.sources.livecodebench import Window
from code_rl.data.sources.records import Item, Origin, Row
from code_rl.data.sources.shapes import ReadRow, read_as
from code_rl.grading import Problem
from code_rl.grading.native import parse_problem
from code_rl.util.data_files import read_lines, stream_rows

ReadRows = Callable[[Iterable[Row]], Iterator[Any]]


def stream(read: ReadRow) -> ReadRows:
    return lambda rows: (read_as(read, row, Origin("set", "row", index)) for index, row in enumerate(rows))


def read_livecodebench(rows: Iterable[Row], window: Window | None = None) -> Iterator[Item]:
    return stream(partial(livecodebench.read_livecodebench, window=window))(rows)


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    return stream_rows(Path(path))


def read_problems(path: str | Path) -> Iterator[Problem]:
    return (parse_problem(line, f"{path}, line {number}") for number, line in read_lines(path))


read_humaneval = stream(humaneval.read_humaneval)
read_humaneval_plus = stream(humaneval.read_humaneval_plus)
read_humaneval_plus_origin = stream(humaneval.read_humaneval_plus_origin)
read_leetcode = stream(leetcode.read_leetcode)
read_mbpp = stream(mbpp.read_mbpp)
read_mbpp_plus = stream(mbpp.read_mbpp_plus)
read_mbpp_plus_origin = stream(mbpp.read_mbpp_plus_origin)
