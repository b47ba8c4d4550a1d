"""One process at a time: whoever holds a lock keeps others out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from code_rl.data.preparation.settings import PrepareConfig
from code_rl.data.preparation.workspace import Workspace
from code_rl.engine.serve.store import StateStore
from code_rl.evaluation.verdict_files import open_verdicts
from code_rl.training.runs.directory import LOCK
from code_rl.util.errors import InputError
from code_rl.util.files import only_writer


def workspace(folder: Path) -> AbstractContextManager[Any]:
    return Workspace(PrepareConfig(dataset="builtin", out=str(folder)), None, "key")  # no stage runs


HOLDERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "run": lambda folder: only_writer(folder / LOCK, f"log_path={folder}"),
    "prepare": workspace,
    "server": lambda folder: contextlib.closing(StateStore(folder)),
    "verdicts": lambda folder: open_verdicts(str(folder / "verdicts.jsonl")),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_a_second_one_is_refused_until_the_first_has_let_go(name, tmp_path):
    with (
        HOLDERS[name](tmp_path),
        pytest.raises(InputError),
        HOLDERS[name](tmp_path),
    ):
        pass
    with HOLDERS[name](tmp_path):
        pass
