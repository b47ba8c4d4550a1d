"""Rows and problems of files, as tests over whole files want them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from code_rl.grading import Problem
from code_rl.grading.native import parse_problem
from code_rl.util.data_files import read_lines, stream_rows


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    return stream_rows(Path(path))


def read_problems(path: str | Path) -> Iterator[Problem]:
    return (parse_problem(line, f"{path}, line {number}") for number, line in read_lines(path))
