"""The core alone, without the extra `train`: `make core` has such an environment; in others this file is skipped."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest

import code_rl
from code_rl.util.errors import install_command
from tests.boxes import require_boxes
from tests.paths import ROOT
from tests.refusals import refused

if find_spec("chz") is not None:
    pytest.skip("the extra train is installed", allow_module_level=True)

SUM = code_rl.Problem("sum", "Add.", (code_rl.StdinTest("1 2\n", "3\n"),))
ADDS = "print(sum(map(int, input().split())))"


def run(*words):
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_program_is_judged_and_nothing_from_outside_is_loaded():
    problem = "code_rl.Problem('p', '', (code_rl.StdinTest('1', '1'),))"
    outside = "sorted({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    script = f"import sys; before = set(sys.modules); import code_rl; print(code_rl.judge({problem}, 'print(1)').kind, {outside})"
    assert run("-c", script).stdout == "passed ['code_rl']\n"


@pytest.mark.skipif(shutil.which("g++", path="/usr/bin") is None, reason="g++ is not installed")
def test_a_program_of_another_language_is_judged():
    require_boxes()
    code = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }"
    assert code_rl.judge(replace(SUM, language="cpp"), code).correct


def test_the_names_of_grading_and_of_the_course_are_there():
    from tinker_utils.env import sandbox_check_correctness
    from tinker_utils.lcb import TEST_CODE, TEST_UTIL, normalize_tests

    assert TEST_CODE
    assert TEST_UTIL
    assert code_rl.extract_code(f"```python\n{ADDS}\n```") == ADDS
    tests = normalize_tests([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}], {})
    assert asyncio.run(sandbox_check_correctness(tests, ADDS))[0]
    assert code_rl.Repair().begin(SUM.view())
    assert code_rl.load_problems("builtin")[0].tests


@pytest.mark.parametrize("words", [["train"], ["eval", "--help"], ["judge", "dataset=x"]])
def test_a_verb_is_one_line_with_what_to_install_and_exit_code_2(words):
    ran = run("-m", "code_rl.cli", *words)
    command = install_command("train")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"error: code-rl {words[0]} needs the extra train (chz is not installed); run: {command}\n"


@pytest.mark.parametrize("words", ["--help", "--version"])
def test_what_the_command_line_says_of_itself_needs_nothing(words):
    assert run("-m", "code_rl.cli", words).returncode == 0


def test_what_needs_an_extra_names_it():
    for name in ("train", "evaluate", "make_datum"):
        with refused("train"):
            getattr(code_rl, name)
    with refused("train"):
        code_rl.load_problems("builtin", limit=2)
    with refused("train"):
        code_rl.load_problems("deepcoder")
