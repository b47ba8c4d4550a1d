"""Source to tree, whatever else the process does."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from code_rl.util import syntax

DEEP = "x = " + "(" * 60 + "1" + ")" * 60 + "\n"


def test_trees_that_several_threads_build_at_once_do_not_disturb_each_other():
    failures: list[BaseException] = []

    def yields(*_: object) -> None:
        time.sleep(0)

    def work() -> None:
        try:
            for _ in range(20):
                syntax.parse(DEEP + "y = [" + "{}, " * 300 + "]\n")
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    kept = gc.get_threshold()
    gc.set_threshold(50)
    gc.callbacks.append(yields)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.callbacks.remove(yields)
        gc.set_threshold(*kept)
    assert failures == []


@pytest.mark.parametrize("source", ["def", "x = \0", "(" * 5000 + ")" * 5000, "-" * 200_000 + "1"])
def test_what_does_not_parse_is_a_syntax_error_whatever_cpython_calls_it(source):
    with pytest.raises(SyntaxError):
        syntax.parse(source)
