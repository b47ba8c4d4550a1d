"""One process at a time: whoever holds a lock keeps others out, and a file system without locks keeps nobody out."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from code_rl.backends.server.store import Store
from code_rl.commands.verdict_files import VerdictLog
from code_rl.errors import InputError
from code_rl.preparation.bench import Bench
from code_rl.preparation.settings import PrepareConfig
from code_rl.runs.lock import lock_run


@contextlib.contextmanager
def run_locked(folder: Path) -> Any:
    lock = lock_run(folder)
    yield
    lock.release()


def bench(folder: Path) -> AbstractContextManager[Any]:
    return Bench(PrepareConfig(dataset="builtin", out=str(folder)), None, "key")  # no stage runs


HOLDERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "run": run_locked,
    "prepare": bench,
    "server": lambda folder: contextlib.closing(Store(folder)),
    "verdicts": lambda folder: VerdictLog(str(folder / "verdicts.jsonl")),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_a_second_one_is_refused_until_the_first_has_let_go(name, tmp_path):
    with (
        HOLDERS[name](tmp_path),
        pytest.raises(InputError, match=r"in use by|being written by"),
        HOLDERS[name](tmp_path),
    ):
        pass
    with HOLDERS[name](tmp_path):
        pass


@pytest.mark.parametrize("name", HOLDERS)
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_refuses_nobody_and_is_named_once(name, number, tmp_path, monkeypatch, caplog):
    def refused(*_: object) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fcntl.flock", refused)
    for _ in range(2):
        with HOLDERS[name](tmp_path):
            pass
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(str(tmp_path))
    assert said.endswith("cannot be locked (no locks here); going on without: see that no other process writes into it")
