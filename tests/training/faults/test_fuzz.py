"""Whatever a file or a command line holds: exit code 0, 1 or 2, one line for a failure, no traceback.

A few cases of each kind here; `pytest -m slow tests/training/faults/test_fuzz.py` draws thousands.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chz
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import code_rl.cli.main
from code_rl.cli.main import Verb
from code_rl.data.builtin import BuiltinTrainSet
from code_rl.engine.checkpoints import append_checkpoint, read_checkpoints
from code_rl.grading import Verdict, VerdictKind, judge_async
from code_rl.grading.native import problem_to_json
from code_rl.policy.completion_log import GroupLog, SampledAnswer, SampledAnswers, SamplingRequest, open_kept
from code_rl.training.config import Config
from code_rl.util.errors import DataError
from code_rl.util.settings import make_settings
from tests.boxes import shared_box

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-2, 3), st.floats(), st.text(max_size=12),
    st.sampled_from(["", "nan", "1e999", "-1", "\x00", "../../x", "\ud800", "builtin", "embedded", "/dev/null", "true", "[]", "9" * 5000]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from parts(item, (*path, key))


@st.composite
def changed(draw: st.DrawFn, whole: Any) -> Any:
    """`whole` with one part replaced by anything, or left out."""
    whole = copy.deepcopy(whole)
    *ahead, last = draw(st.sampled_from(list(parts(whole))))
    inner = whole
    for key in ahead:
        inner = inner[key]
    if draw(st.booleans()):
        inner[last] = draw(VALUES)
    else:
        del inner[last]
    return whole


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes flipped, cut off, put in, doubled, once to three times."""
    for _ in range(draw(st.integers(1, 3))):
        at, more = draw(st.integers(0, len(data))), draw(st.binary(min_size=1, max_size=8))
        flipped = data[:at] + bytes(byte ^ (more[0] or 1) for byte in data[at : at + 1]) + data[at + 1 :]
        data = draw(st.sampled_from([flipped, data[:at], data[:at] + more + data[at:], data[:at] + data[at // 2 :]]))
    return data


@st.composite
def lines(draw: st.DrawFn, *rows: Any) -> bytes:
    """A file of these rows, of which the last is changed; perhaps damaged."""
    data = "".join(json.dumps(row) + "\n" for row in (*rows[:-1], draw(changed(rows[-1])))).encode()
    return draw(st.just(data) | damaged(data))


def words(names: list[str]) -> st.SearchStrategy[list[str]]:
    """A command line of settings with any values."""
    setting = st.builds("{}={}".format, st.sampled_from(names), VALUES)
    other = st.builds("--{}={}".format, st.text(max_size=8), LEAVES) | st.text(max_size=12)
    given = st.sampled_from(["seed", "--seed", "=", "--", "-", "recipe=tiny", "group_size=8", "groups_per_batch=4"])
    return st.lists(setting | other | given, max_size=5)


@pytest.fixture
def ends(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Hold a command line to the promise."""

    async def no_run(*_: object, **__: object) -> tuple[int, Path]:
        return 0, tmp_path

    monkeypatch.setattr("code_rl.cli.train.train_run", no_run)
    monkeypatch.chdir(tmp_path)

    def run(*command: str) -> None:
        code = code_rl.cli.main.main(list(command))
        err = capsys.readouterr().err
        assert code in (0, 1, 2), (code, command)
        assert "Traceback" not in err
        assert code != 2 or (err.startswith("error: ") and err.count("\n") == 1), err

    return run


def fuzz(strategy: st.SearchStrategy[Any], check: Callable[[Any], object], cases: int) -> None:
    @settings(max_examples=cases, database=None, derandomize=cases < 100, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(value: Any) -> None:
        check(value)

    run()


CASES = [12, pytest.param(2500, id="slow", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
fuzzed = pytest.mark.parametrize("cases", CASES)
PROBLEM = BuiltinTrainSet()[0]
CALL = {"id": "c", "statement": "s", "fn_name": "f", "tests": [{"kind": "call", "args": [1, [2]], "kwargs": {"a": 1}, "expected": {"b": 1.5}, "public": True}], "compare": "float"}  # fmt: skip
PROGRAMS = [{"problem_id": PROBLEM.id, "program_id": "a", "code": "print(1)"}, {"problem_id": PROBLEM.id, "program_id": "b", "completion": "```\nx\n```"}]  # fmt: skip


@fuzzed
def test_settings_of_train(ends, cases):
    def check(given: list[str]) -> None:
        ends(
            "train", *(w for w in given if not w.lstrip("-").startswith(("dry_run", "log_path", "help")) and w != "-h")
        )

    fuzz(words(sorted(chz.chz_fields(Config))), check, cases)


@fuzzed
@pytest.mark.parametrize("verb", ["eval", "judge", "export", "report", "prepare", "sandbox", "serve"])
def test_settings_of_other_verbs(ends, monkeypatch, verb, cases):
    monkeypatch.setattr(Verb, "run", lambda self, given: make_settings(self.settings_class(), given) and 0)
    fields = sorted(chz.chz_fields(code_rl.cli.main.VERBS[verb].settings_class()))
    setting = st.builds("{}={}".format, st.sampled_from(fields), VALUES)
    fuzz(st.lists(setting, max_size=4), lambda given: ends(verb, *given), cases // 3)


@fuzzed
@pytest.mark.parametrize("rows", [[problem_to_json(PROBLEM)], [problem_to_json(PROBLEM), CALL]], ids=["stdin", "call"])
def test_files_of_problems(ends, tmp_path, rows, cases):
    path, programs = tmp_path / "p.jsonl", tmp_path / "q.jsonl"
    programs.write_text("")

    def check(data: bytes) -> None:
        path.write_bytes(data)
        ends("judge", f"dataset={path}", f"programs={programs}", f"out={tmp_path / 'v.jsonl'}", "dry_run=true")

    fuzz(lines(*rows), check, cases)


@fuzzed
def test_files_of_programs(ends, tmp_path, cases):
    path, problems = tmp_path / "q.jsonl", tmp_path / "p.jsonl"
    problems.write_text(json.dumps(problem_to_json(PROBLEM)) + "\n")

    def check(data: bytes) -> None:
        path.write_bytes(data)
        ends("judge", f"dataset={problems}", f"programs={path}", f"out={tmp_path / 'v.jsonl'}", "dry_run=true")

    fuzz(lines(*PROGRAMS), check, cases)


@fuzzed
def test_lines_of_checkpoints(tmp_path, cases):
    record = {"name": "000001", "step": 1, "offset": 4, "state_path": "/x", "sampler_path": "/y"}
    path = tmp_path / "checkpoints.jsonl"
    for each in (record, {**record, "lengths": {"a": 1}, "version": 2}):
        append_checkpoint(tmp_path, each)
    rows = [json.loads(line) for line in path.read_text().splitlines()]

    def check(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(DataError):
            read_checkpoints(tmp_path)

    fuzz(lines(*rows), check, cases)


@fuzzed
def test_completions_in_flight(tmp_path, cases):
    log = GroupLog(open_kept(tmp_path / "whole"), "0.0")
    sampled = SampledAnswers((SampledAnswer((1, 2), (-0.5, -0.25), "stop"),), 0.1, 0)
    log.keep_sampled(SamplingRequest((7, 8), 2, 8, 1.0, 1), sampled)
    log.keep_verdict((False, "pass"), Verdict(VerdictKind.PASSED, 1, 1, "lcb"))

    def check(data: bytes) -> None:
        (tmp_path / "damaged").write_bytes(data)
        with contextlib.suppress(DataError):
            open_kept(tmp_path / "damaged").close()

    fuzz(damaged((tmp_path / "whole").read_bytes()), check, cases)


@fuzzed
def test_settings_of_a_run(ends, tmp_path, cases):
    config = chz.asdict(Config(backend="embedded", executor="embedded"))
    kept = json.loads(json.dumps({**config, "resolved": {"prompts": 8, "data": {"builtin": ["x"]}}}))

    def check(data: bytes) -> None:
        (tmp_path / "config.json").write_bytes(data)
        ends("train", f"log_path={tmp_path}")

    fuzz(lines(kept), check, cases)


PIECES = ["import sys", "print(", ")", "input()", "\n", "    ", "def f(x):", "return", "while True:", "pass", "\x00", "é", "1/0", "[", "lambda: ", "raise SystemExit", "os._exit(3)", "class A:", "'''", "#", "yield", "\t", "x = 9**9**9", "\ud83d", "𝒳"]  # fmt: skip


@pytest.mark.parametrize(
    "cases", [6, pytest.param(500, id="slow", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_a_program_of_any_text_gets_a_verdict_of_its_own(cases):
    def check(code: str) -> None:
        assert not asyncio.run(judge_async(PROBLEM, code, shared_box(), cpu_limit_s=0.3)).undecided

    fuzz(st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map("".join), check, cases)
