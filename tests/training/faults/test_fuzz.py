"""Whatever a file or a command line holds: exit code 0, 1 or 2, one line for a failure, no traceback.

Quick here; `pytest -m slow tests/training/faults/test_fuzz.py` makes 27,000 cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chz
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import code_rl.cli.main
import code_rl.cli.train
from code_rl.cli.main import Verb
from code_rl.data.builtin import BuiltinTrainSet
from code_rl.engine.checkpoints import append_checkpoint, read_checkpoints
from code_rl.engine.local.state import read_state, write_state
from code_rl.grading.judging import judge_async
from code_rl.grading.native import format_problem, problem_to_json
from code_rl.grading.sandbox.local.pool import EmbeddedSandbox
from code_rl.grading.verdict import Verdict, VerdictKind
from code_rl.policy.completion_log import GroupLog, SampledAnswer, SampledAnswers, SamplingRequest, open_kept
from code_rl.training.config import Config
from code_rl.util.errors import DataError

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-2, 3), st.floats(), st.text(max_size=12),
    st.sampled_from(["", "0", "nan", "1e999", "-1", "\x00", "../../x", "\ud800", "☃", "builtin", "tiny", "embedded", "/dev/null", "true", "[]", "9" * 5000]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
CHECKED = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
]


class Exit:
    """What a verb ended with."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def of(self, words: list[str]) -> int:
        """Run the command line; hold it to its promise."""
        code = code_rl.cli.main.main(words)
        err = self._capsys.readouterr().err
        assert code in (0, 1, 2), (code, words)
        assert "Traceback" not in err
        if code == 2:
            assert err.startswith("error: "), err
            assert err.count("\n") == 1, err
        return code


@pytest.fixture
def leaving(capsys: pytest.CaptureFixture[str]) -> Exit:
    return Exit(capsys)


def fuzz(strategy: st.SearchStrategy[Any], check: Callable[[Any], object], cases: int) -> None:
    """Check so many drawn values."""

    @settings(max_examples=cases, deadline=None, suppress_health_check=CHECKED, database=None, derandomize=cases < 1000)
    @given(strategy)
    def run(value: Any) -> None:
        check(value)

    run()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything within a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(whole: Any, choice: int, other: Any, how: str) -> Any:
    """`whole` with the part at one place replaced by `other`, or left out."""
    paths = [path for path in places(whole) if path]
    path = paths[choice % len(paths)]
    whole = copy.deepcopy(whole)
    *ahead, last = path
    inner = whole
    for key in ahead:
        inner = inner[key]
    if how == "drop":
        del inner[last]
    else:
        inner[last] = other
    return whole


CHANGES = st.tuples(st.integers(0, 10_000), VALUES, st.sampled_from(["put", "put", "put", "drop"]))
EDITS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from(["flip", "cut", "insert", "double"]), st.binary(min_size=1, max_size=8)), min_size=1, max_size=3)  # fmt: skip


def edited(data: bytes, edits: list[tuple[float, str, bytes]]) -> bytes:
    """Bytes flipped, cut off, put in, doubled."""
    for where, how, what in edits:
        at = int(where * max(len(data), 1))
        if how == "flip" and data:
            data = data[:at] + bytes([data[at] ^ (what[0] or 1)]) + data[at + 1 :]
        elif how == "cut":
            data = data[:at]
        elif how == "insert":
            data = data[:at] + what + data[at:]
        else:
            data = data[:at] + data[at // 2 :]
    return data


NAMES = sorted(chz.chz_fields(Config))
WORDS = st.lists(
    st.one_of(
        st.builds(lambda name, value: f"{name}={value}", st.sampled_from(NAMES), LEAVES | VALUES),
        st.builds(lambda name, value: f"--{name}={value}", st.sampled_from(NAMES) | st.text(max_size=8), LEAVES),
        st.text(max_size=12),
        st.sampled_from(["seed", "--seed", "=", "--", "-", "seed=1", "recipe=tiny", "group_size=8", "groups_per_batch=4", "loss=ppo", "max_steps=2"]),
    ),
    max_size=5,
)  # fmt: skip


def fuzz_settings(leaving: Exit, folder: Path, monkeypatch: pytest.MonkeyPatch, cases: int) -> None:
    async def no_run(*_: object, **__: object) -> int:
        return 0

    monkeypatch.setattr(code_rl.cli.train, "train_run", no_run)
    monkeypatch.chdir(folder)
    not_here = ("dry_run", "log_path")

    def check(words: list[str]) -> None:
        leaving.of(["train", *(word for word in words if not word.lstrip("-").startswith(not_here) and "help" not in word and word != "-h")])  # fmt: skip

    fuzz(WORDS, check, cases)


def fuzz_other_verbs(leaving: Exit, folder: Path, monkeypatch: pytest.MonkeyPatch, cases: int) -> None:
    from code_rl.util.settings import make_settings

    monkeypatch.chdir(folder)
    verbs = ["eval", "judge", "export", "report", "prepare", "sandbox", "serve"]
    monkeypatch.setattr(
        code_rl.cli.main,
        "VERBS",
        {name: Verb(code_rl.cli.main.VERBS[name].settings, "test:command", "") for name in verbs},
    )
    monkeypatch.setattr(Verb, "run", lambda self, given: make_settings(self.settings_class(), given) and 0)
    fields = {name: sorted(chz.chz_fields(code_rl.cli.main.VERBS[name].settings_class())) for name in verbs}
    words = st.sampled_from(verbs).flatmap(
        lambda verb: st.tuples(st.just(verb), st.lists(st.builds(lambda n, v: f"{n}={v}", st.sampled_from(fields[verb]), LEAVES | VALUES), max_size=4))
    )  # fmt: skip
    fuzz(words, lambda sampled: leaving.of([sampled[0], *sampled[1]]), cases)


def fuzz_problem_files(leaving: Exit, folder: Path, monkeypatch: pytest.MonkeyPatch, cases: int) -> None:
    made = BuiltinTrainSet()
    whole = [problem_to_json(made[index]) for index in range(3)]
    call = {"id": "c", "statement": "s", "fn_name": "f", "tests": [{"kind": "call", "args": [1, [2]], "kwargs": {"a": 1}, "expected": {"b": 1.5}, "public": True}], "compare": "float"}  # fmt: skip
    path, programs = folder / "p.jsonl", folder / "q.jsonl"
    programs.write_text("")

    def check(sampled: tuple[tuple[int, Any, str], Any]) -> None:
        change, edits = sampled
        rows = [*whole[:2], changed(call, *change), changed(whole[2], *change)]
        data = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows).encode()
        path.write_bytes(edited(data, edits) if edits else data)
        leaving.of(["judge", f"problems={path}", f"programs={programs}", f"out={folder / 'v.jsonl'}", "dry_run=true"])  # fmt: skip

    fuzz(st.tuples(CHANGES, st.none() | EDITS), check, cases)


def fuzz_program_files(leaving: Exit, folder: Path, monkeypatch: pytest.MonkeyPatch, cases: int) -> None:
    problem = BuiltinTrainSet()[0]
    (folder / "p.jsonl").write_text(format_problem(problem) + "\n")
    whole = [{"problem_id": problem.id, "program_id": "a", "code": "print(1)"}, {"problem_id": problem.id, "program_id": "b", "completion": "```\nx\n```"}]  # fmt: skip

    def check(sampled: tuple[tuple[int, Any, str], Any]) -> None:
        change, edits = sampled
        data = "".join(json.dumps(changed(row, *change)) + "\n" for row in whole).encode()
        (folder / "q.jsonl").write_bytes(edited(data, edits) if edits else data)
        leaving.of(["judge", f"problems={folder / 'p.jsonl'}", f"programs={folder / 'q.jsonl'}", f"out={folder / 'v.jsonl'}", "dry_run=true"])  # fmt: skip

    fuzz(st.tuples(CHANGES, st.none() | EDITS), check, cases)


def small_state(folder: Path) -> Path:
    path = folder / "a.state.safetensors"
    if not path.exists():
        write_state(
            path, {"w": torch.arange(40.0), "adam.mean.w": torch.zeros(40)}, {"kind": "state", "rank": 2}, False
        )
    return path


def fuzz_states(leaving: Exit, folder: Path, monkeypatch: pytest.MonkeyPatch, cases: int) -> None:
    data = small_state(folder).read_bytes()
    whole, damaged = read_state(small_state(folder)), folder / "d.state.safetensors"

    def command(given: dict[str, str]) -> int:
        found = read_state(Path(given["path"]))
        assert found.meta == whole.meta
        assert all(torch.equal(found.tensors[name], tensor) for name, tensor in whole.tensors.items())
        return 0

    monkeypatch.setattr(Verb, "run", lambda self, given: command(given))

    def check(edits: list[tuple[float, str, bytes]]) -> None:
        damaged.write_bytes(edited(data, edits))
        leaving.of(["train", f"path={damaged}"])

    fuzz(EDITS, check, cases)


def fuzz_checkpoint_lines(leaving: Exit, folder: Path, monkeypatch: pytest.MonkeyPatch, cases: int) -> None:
    record = {"name": "000001", "step": 1, "offset": 4, "state_path": "/x", "sampler_path": "/y"}

    def check(sampled: tuple[tuple[int, Any, str], Any]) -> None:
        change, edits = sampled
        (folder / "checkpoints.jsonl").unlink(missing_ok=True)
        for each in (record, changed({**record, "marks": {"a": [1, 2]}, "version": 2}, *change)):
            append_checkpoint(folder, each)
        path = folder / "checkpoints.jsonl"
        path.write_bytes(edited(path.read_bytes(), edits) if edits else path.read_bytes())
        with contextlib.suppress(DataError):
            read_checkpoints(folder)

    fuzz(st.tuples(CHANGES, st.none() | EDITS), check, cases)


def fuzz_completions_in_flight(leaving: Exit, folder: Path, monkeypatch: pytest.MonkeyPatch, cases: int) -> None:
    """A damaged file is opened with rows as they were kept, or refused by its name."""
    request = SamplingRequest((7, 8), 2, 8, 1.0, 1)
    sampled = SampledAnswers((SampledAnswer((1, 2), (-0.5, -0.25), "stop"),), 0.1, 0)
    log = GroupLog(open_kept(folder / "whole"), "0.0")
    log.keep_sampled(request, sampled)
    log.keep_verdict((False, "pass"), Verdict(VerdictKind.PASSED, 1, 1, "lcb"))
    whole, path = (folder / "whole").read_bytes(), folder / "damaged"

    def check(edits: list[tuple[float, str, bytes]]) -> None:
        path.write_bytes(edited(whole, edits))
        with contextlib.suppress(DataError):
            open_kept(path).close()

    fuzz(EDITS, check, cases)


def fuzz_settings_of_a_run(leaving: Exit, folder: Path, monkeypatch: pytest.MonkeyPatch, cases: int) -> None:
    async def no_run(*_: object, **__: object) -> int:
        return 0

    monkeypatch.setattr(code_rl.cli.train, "train_run", no_run)
    kept = json.loads(json.dumps({**chz.asdict(Config(backend="embedded", executor="embedded")), "resolved": {"prompts": 8, "data": {"builtin": ["x"]}}}))  # fmt: skip

    def check(sampled: tuple[tuple[int, Any, str], Any]) -> None:
        change, edits = sampled
        data = json.dumps(changed(kept, *change)).encode()
        (folder / "config.json").write_bytes(edited(data, edits) if edits else data)
        leaving.of(["train", f"log_path={folder}"])

    fuzz(st.tuples(CHANGES, st.none() | EDITS), check, cases)


PIECES = ["import sys", "print(", ")", "input()", "\n", "    ", "def f(x):", "return", "while True:", "pass", "\x00", "é", "1/0", "[", "lambda: ", "raise SystemExit", "os._exit(3)", "class A:", "'''", "#", "async ", "yield", "\t", "exit()", "x = 9**9**9", "\ud83d", "𝒳"]  # fmt: skip


def fuzz_programs(leaving: Exit, folder: Path, monkeypatch: pytest.MonkeyPatch, cases: int) -> None:
    """Random programs through the sandbox: a verdict for each, and never one of ours."""
    problem = BuiltinTrainSet()[0]
    chooser = random.Random(cases)
    sources = ["".join(chooser.choices(PIECES, k=chooser.randrange(1, 12))) for _ in range(cases)]

    async def verdicts() -> list[Any]:
        async with EmbeddedSandbox(2) as box:
            return await asyncio.gather(*(judge_async(problem, source, box, cpu_limit_s=0.3) for source in sources))

    for verdict in asyncio.run(verdicts()):
        assert not verdict.undecided, verdict


FUZZERS: dict[str, tuple[Callable[..., None], int]] = {
    "settings": (fuzz_settings, 8500),
    "other verbs": (fuzz_other_verbs, 2500),
    "problem files": (fuzz_problem_files, 3500),
    "program files": (fuzz_program_files, 2000),
    "states": (fuzz_states, 2500),
    "checkpoint lines": (fuzz_checkpoint_lines, 1500),
    "completions in flight": (fuzz_completions_in_flight, 1500),
    "settings of a run": (fuzz_settings_of_a_run, 2500),
    "programs": (fuzz_programs, 500),
}


@pytest.mark.parametrize("what", FUZZERS)
def test_a_few_cases_end_as_promised(what, leaving, tmp_path, monkeypatch):
    FUZZERS[what][0](leaving, tmp_path, monkeypatch, 12)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", FUZZERS)
def test_many_cases_end_as_promised(what, leaving, tmp_path, monkeypatch):
    fuzzer, cases = FUZZERS[what]
    fuzzer(leaving, tmp_path, monkeypatch, cases)


def test_the_slow_suite_has_twenty_thousand_cases():
    assert sum(cases for _, cases in FUZZERS.values()) >= 20_000
