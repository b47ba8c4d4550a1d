"""Source to tree, whatever else the process does."""

from __future__ import annotations

import threading

import pytest

from code_rl.problems import syntax

DEEP = "x = " + "(" * 60 + "1" + ")" * 60 + "\n"


def test_trees_that_several_threads_build_at_once_do_not_disturb_each_other():
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(60):
                syntax.parse(DEEP + "y = [" + "{}, " * 2000 + "]\n")
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("source", ["def", "x = \0", "(" * 5000 + ")" * 5000, "-" * 200_000 + "1"])
def test_what_does_not_parse_is_a_syntax_error_whatever_cpython_calls_it(source):
    with pytest.raises(SyntaxError):
        syntax.parse(source)
