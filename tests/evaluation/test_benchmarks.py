"""Benchmarks by name: which rows, which tests, which words, which revision."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from code_rl.cli.main import main
from code_rl.data import subsample
from code_rl.data.builtin import test_split
from code_rl.data.fetch import Pinned, fetch
from code_rl.evaluation import EvalConfig
from code_rl.evaluation.benchmarks import load_benchmark
from code_rl.evaluation.generators import read_samples_file
from code_rl.grading import CallTest, Problem, StdinTest
from code_rl.util.errors import ConfigError, DataError, SandboxError
from tests.boxes import shared_box
from tests.data.problems.test_livecodebench import row as livecodebench_row
from tests.grading.corpus.rooms import data_file
from tests.refusals import refused

HUMANEVAL = {
    "task_id": "HumanEval/900", "entry_point": "twice", "atol": 0, "base_input": [[[1]], [[]]], "plus_input": [[[5, 6]]],
    "prompt": 'from typing import List\n\ndef twice(xs: List[int]) -> List[int]:\n    """ Doubles. """\n',
    "canonical_solution": "    return [x * 2 for x in xs]\n",
    "test": "def check(candidate):\n    assert candidate([7]) == [14]\n",
}  # fmt: skip
MBPP_PLUS = {
    "task_id": "Mbpp/900", "entry_point": "add", "atol": 0, "base_input": [[1, 2]], "plus_input": [[3, 4]],
    "prompt": '"""\nAdd.\nassert add(1, 2) == 3\n"""\n', "canonical_solution": "def add(a, b):\n    return a + b",
    "assertion": "assert add(1, 2) == 3\n",
}  # fmt: skip
MBPP = {
    "task_id": 900, "text": "Add.", "code": "def add(a, b):\n    return a + b", "test_setup_code": "", "challenge_test_list": [],
    "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODE_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CODE_RL_DATA", str(tmp_path / "cache" / "data"))


class Counting:
    """An executor that counts its jobs, and fails at one of them."""

    def __init__(self, executor, fails_at=None):
        self._executor, self._fails_at = executor, fails_at
        self.jobs = 0

    async def run(self, job):
        self.jobs += 1
        if self.jobs == self._fails_at:
            raise SandboxError("the machine went down")
        async for execution in self._executor.run(job):
            yield execution


SUM = Problem("a", "Sum.", (StdinTest("1 2\n", "3\n"),))
TWICE = [SUM, SUM]
ODD = type("Odd", (list,), {"prompt": "Solve it."})([SUM])


@pytest.mark.parametrize(("name", "said"), [("TWICE", "gives id 'a' more than once"), ("ODD", "its prompt is a str")])
def test_an_object_that_loses_a_problem_or_has_no_wording_is_refused(name, said):
    with refused(said):
        load(f"tests.evaluation.test_benchmarks:{name}", None)


def load(name, data, through=lambda sandbox: sandbox, **choice):
    executor = through(shared_box())
    return asyncio.run(load_benchmark(name, None if data is None else str(data), EvalConfig(**choice).choice, executor))


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def only(benchmark):
    (entry,) = benchmark.entries
    return benchmark.question(entry)[0]


def asked(benchmark):
    (entry,) = benchmark.entries
    return benchmark.question(entry)[1]


def expected(problem):
    return [test.expected for test in problem.tests]


def test_humaneval_plus_has_base_and_extra_tests_and_humaneval_the_base_alone(tmp_path):
    data = write(tmp_path / "he.jsonl", HUMANEVAL)
    assert expected(only(load("humaneval+", data))) == [[2], [], [10, 12]]
    assert expected(only(load("humaneval", data))) == [[2], []]


def test_a_cut_while_expected_values_are_made_costs_the_rows_in_hand(tmp_path, monkeypatch):
    rows = [{**HUMANEVAL, "task_id": f"HumanEval/{900 + i}"} for i in range(24)]
    rows[3] = {**rows[3], "canonical_solution": "    return 1 // 0\n"}
    data = write(tmp_path / "he.jsonl", *rows)
    counted = []

    def counting(sandbox, fails_at=None):
        counted.append(Counting(sandbox, fails_at))
        return counted[-1]

    with pytest.raises(SandboxError):
        load("humaneval+", data, partial(counting, fails_at=18))
    cut = load("humaneval+", data, counting)
    assert 24 - 17 <= counted[1].jobs <= 24
    assert list(cut.skipped.values()) == ["reference_failed"]
    made = [path.read_bytes() for path in sorted((tmp_path / "cache" / "problems").glob("*/*.*"))]
    monkeypatch.setenv("CODE_RL_CACHE", str(tmp_path / "other"))
    load("humaneval+", data, counting)
    # The reference that fails is also run alone.
    assert counted[2].jobs == 24 + 1
    assert len(made) == 2
    assert made == [path.read_bytes() for path in sorted((tmp_path / "other" / "problems").glob("*/*.*"))]


def test_humaneval_s_own_file_has_its_asserts(tmp_path):
    own = {name: value for name, value in HUMANEVAL.items() if not name.endswith("_input")}
    assert expected(only(load("humaneval", write(tmp_path / "he.jsonl", own)))) == [[14]]


def test_evalplus_prompts_show_the_row_s_prompt_and_no_hidden_test(tmp_path):
    benchmark = load("humaneval+", write(tmp_path / "he.jsonl", HUMANEVAL))
    system, user = asked(benchmark)
    assert system == {"role": "system", "content": "You are a helpful assistant good at coding."}
    assert user["content"].startswith("Please provide a self-contained Python script")
    assert user["content"].endswith('```python\nfrom typing import List\n\ndef twice(xs: List[int]) -> List[int]:\n    """ Doubles. """\n```')  # fmt: skip
    assert benchmark.prompt.version.startswith("evalplus/0.3.1")


def test_mbpp_is_asked_as_its_file_asks(tmp_path):
    plus = load("mbpp", write(tmp_path / "plus.jsonl", MBPP_PLUS))
    assert (expected(only(plus)), plus.prompt.version[:8]) == ([3], "evalplus")
    own = load("mbpp", write(tmp_path / "own.jsonl", MBPP))
    (message,) = asked(own)
    assert message["content"] == (
        "You are an expert Python programmer, and here is your task: Add. Your code should pass these tests:\n\n"
        "assert add(1, 2) == 3\nassert add(0, 0) == 0\n"
    )
    assert only(load("mbpp+", write(tmp_path / "p.jsonl", MBPP_PLUS))).tests[1] == CallTest((3, 4), 7)


def test_samples_of_a_whole_release_are_left_out_outside_the_window_and_those_of_no_problem_refused(tmp_path):
    rows = dated(f"2024-08-0{i}" for i in range(1, 6))
    data = write(tmp_path / "test.jsonl", *rows, livecodebench_row(question_id="bad", private_test_cases="%%"))
    whole = write(tmp_path / "s.jsonl", *({"question_id": i, "code_list": ["1", "2"]} for i in (*"12345", "bad")))
    narrow = load("livecodebench", data, start_date="2024-08-02", end_date="2024-08-04", limit=2)
    _, most, _, left_out = read_samples_file(str(whole), narrow.entries, narrow.others)
    assert (most, left_out, len(narrow.entries)) == (2, 8, 2)
    other = write(tmp_path / "other.jsonl", {"question_id": "6", "code_list": ["1"]})
    with refused("'6'", kind=DataError):
        read_samples_file(str(other), narrow.entries, narrow.others)
    outside = write(tmp_path / "outside.jsonl", {"question_id": "1", "code_list": ["1"]})
    with pytest.raises(ConfigError):
        read_samples_file(str(outside), narrow.entries, narrow.others)


def dated(days, **changes):
    rows = {str(i): f"{day}T23:59:59" for i, day in enumerate(days, start=1)}
    return [livecodebench_row(question_id=i, contest_date=date, **changes) for i, date in rows.items()]


@pytest.fixture
def shards(tmp_path):
    """A folder of LiveCodeBench's six shards, with one row of August 2024 each; the fourth has a broken one too."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, row in enumerate(dated(f"2024-08-0{i}" for i in range(1, 7)), start=1):
        broken = [livecodebench_row(question_id="bad", private_test_cases="%%")] if number == 4 else []
        write(folder / f"test{number if number > 1 else ''}.jsonl", row, *broken)
    return folder


def test_livecodebench_is_cut_by_release_and_window_and_broken_down(shards):
    window = {"start_date": "2024-08-02", "end_date": "2024-08-04"}
    benchmark = load("livecodebench", shards, version="release_v5", **window)
    assert [entry.problem_id for entry in benchmark.entries] == ["2", "3", "4"]
    assert benchmark.entries[0].tags == {"difficulty": "easy", "platform": "atcoder"}
    assert benchmark.facts["release"] == "release_v5"
    assert benchmark.facts["window"] == "2024-08-02 to 2024-08-04 inclusive"
    assert benchmark.facts["skipped"] == {"outside_window": 3}
    bad = load("livecodebench", shards, version="release_v5", end_date="2024-08-05")
    assert bad.skipped == {"bad": "bad_private_tests"}


@pytest.mark.parametrize(
    ("version", "first", "last"),
    [*((f"release_v{n}", 1, n) for n in range(1, 7)), ("v6", 6, 6), ("v1", 1, 1), ("v2_v4", 2, 4), ("release_latest", 1, 6)],
)  # fmt: skip
def test_releases_are_cumulative_and_versions_are_single_shards(shards, version, first, last):
    entries = load("livecodebench", shards, version=version).entries
    assert [entry.problem_id for entry in entries] == [str(n) for n in range(first, last + 1)]


def test_a_missing_shard_is_named(shards):
    (shards / "test3.jsonl").unlink()
    with refused("test3.jsonl"):
        load("livecodebench", shards, version="release_v3")


def test_the_279_dates_of_v5_fall_into_its_published_window_and_a_part_of_them_into_a_part_of_it(tmp_path):
    with data_file("qwq_lcb_prompts/livecodebench_v5.jsonl").open() as lines:
        days = [json.loads(line)["contest_date"][:10] for line in lines]
    data = write(tmp_path / "v5.jsonl", *dated(days))
    whole = load("livecodebench", data, start_date="2024-08-01", end_date="2025-02-01")
    part = load("livecodebench", data, start_date="2024-08-04", end_date="2025-01-03")
    assert len(part.entries) < len(whole.entries) == 279


def test_livecodebench_is_asked_as_its_runner_asks_a_chat_model(tmp_path):
    benchmark = load("livecodebench", write(tmp_path / "one.jsonl", livecodebench_row()))
    system, user = asked(benchmark)
    assert system["content"].startswith("You are an expert Python programmer.")
    assert user["content"].startswith("### Question:\nPrint the sum.\n\n### Format: Read the inputs from stdin")
    assert user["content"].endswith(
        "```python\n# YOUR CODE HERE\n```\n\n### Answer: (use the provided format with backticks)\n\n"
    )
    assert "5 6" not in user["content"]


ADD = "a, b = map(int, input().split())\nprint(a + b)\n"
ON_STDIN = {
    "names": (f"assert math.gcd(4, 6) == gcd(4, 6) == 2\nrow: List[int] = list(deque([1]))\n{ADD}", "passed"),
    "recursion": (f"def depth(n):\n    return n and 1 + depth(n - 1)\nassert depth(40000) == 40000\n{ADD}", "passed"),
    "exit code": (f"{ADD}sys.exit(1)", "passed"),
    "exit text": (f"{ADD}raise SystemExit('done')", "passed"),
    "early exit": ("sys.exit(1)", "wrong_answer"),
    "error": (f"{ADD}1 / 0", "runtime_error"),
    "own error": (f"{ADD}class Own(Exception):\n    pass\nraise Own", "runtime_error"),
    "not imported": (f"{ADD}os.abort()", "runtime_error"),
}
METHOD = "class Solution:\n    def pairs(self, n):\n        return [[i, i] for i in range(n)]\n"
STATE = "seen = []\nplain = Solution.pairs\nSolution.pairs = "
CALLED = {
    "method": (METHOD, "passed"),
    "function": ("def pairs(n):\n    return tuple([i, i] for i in range(n))\n", "passed"),
    "tuple within": (METHOD.replace("[i, i]", "(i, i)"), "wrong_answer"),
    "list": (METHOD + STATE + "lambda self, n: seen.append(n) or plain(self, sum(seen))", "wrong_answer"),
    "an earlier call is needed": (
        METHOD + STATE + "lambda self, n: seen.append(n) or plain(self, n + (n == 3 and len(seen) < 2))",
        "passed",
    ),
    "default value": (
        "def pairs(n, rows=[]):\n    rows += [[i, i] for i in range(n)]\n    return rows\n",
        "wrong_answer",
    ),
    "no class": (
        METHOD + "Other = Solution\ndel Solution\ndef pairs(n):\n    return Other().pairs(n)\n",
        "runtime_error",
    ),
    "time": ("def pairs(n):\n    while True:\n        pass\n", "time_limit"),
    "a class of its own": (
        "class _Module:\n    rows = 2\ndef pairs(n):\n    return [[i] * _Module.rows for i in range(n)]\n",
        "passed",
    ),
}


def official_verdicts(folder, row, programs):
    """The verdict of each program on LiveCodeBench's row, all of them samples of one evaluation."""
    data = write(folder / "one.jsonl", row)
    codes = [code for code, _ in programs.values()]
    samples = write(folder / "samples.jsonl", {"question_id": row["question_id"], "code_list": codes})
    words = [f"data={data}", f"samples={samples}", "reward_timeout=0.5", f"out={folder / 'out'}"]
    assert main(["eval", "benchmark=livecodebench", *words]) == 0
    rows = map(json.loads, (folder / "out" / "verdicts.jsonl").read_text().splitlines())
    verdicts = {row["sample"]: row["verdict"] for row in rows}
    return {name: verdicts[number] for number, name in enumerate(programs)}


def test_livecodebench_has_its_imports_before_programs_on_stdin_and_ends_them_as_its_harness_does(tmp_path):
    found = official_verdicts(tmp_path, livecodebench_row(), ON_STDIN)
    assert found == {name: official for name, (_, official) in ON_STDIN.items()}


@pytest.mark.long
def test_calls_are_made_in_one_process_for_the_official_rule_as_the_utility_makes_them(tmp_path):
    tests = [
        {"input": str(n), "output": json.dumps([[i, i] for i in range(n)]), "testtype": "functional"} for n in (2, 3, 1)
    ]
    called = {"metadata": '{"func_name": "pairs"}', "public_test_cases": "[]", "starter_code": METHOD[:45]}
    row = livecodebench_row(private_test_cases=json.dumps(tests), **called)
    assert official_verdicts(tmp_path, row, CALLED) == {name: official for name, (_, official) in CALLED.items()}


def test_the_builtin_splits_are_limited_as_the_loop_limits_them():
    benchmark = load("builtin", None, limit=3)
    wanted = [
        problem.id
        for split in ("constants", "compositions", "primitives")
        for problem in subsample(test_split(split), 3)
    ]
    assert [entry.problem_id for entry in benchmark.entries] == wanted
    assert [entry.index for entry in benchmark.entries] == [0, 1, 2] * 3


def test_the_real_codeforces_set_has_its_408_problems_by_name(tmp_path):
    benchmark = load("codeforces", data_file("rllm/codeforces.json").parent)
    names = [entry.problem_id for entry in benchmark.entries] + list(benchmark.skipped)
    assert len(names) == 408
    assert benchmark.entries[0].problem_id == "1971A"


LIVE, UNKNOWN = "livecodebench", ("release_v7", "v0", "v7", "v4_v2", "latest", "release_v1_v2", "")


@pytest.mark.parametrize(
    ("name", "choice", "named"),
    [
        *((LIVE, {"version": version}, ("release_v1", "release_v6")) for version in UNKNOWN),
        (LIVE, {"version": "v6", "end_date": "soon"}, ("end_date=",)),
        (LIVE, {"version": "v6", "start_date": "2024-13-01"}, ("start_date=",)),
        (LIVE, {"version": "v6", "start_date": "2025-01-02", "end_date": "2025-01-01"}, ("end_date=", "start_date=")),
    ],
)
def test_a_choice_that_does_not_apply_is_refused(tmp_path, name, choice, named):
    with refused(*named):
        load(name, tmp_path, **choice)


def test_an_empty_file_and_one_without_a_sound_row_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    for path in (tmp_path / "empty.jsonl", write(tmp_path / "bad.jsonl", {"task_id": "x", "base_input": 3})):
        with pytest.raises(DataError):
            load("humaneval+", path)


@pytest.fixture
def published(tmp_path):
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "data.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield (
        f"http://127.0.0.1:{server.server_port}/data.jsonl.gz",
        hashlib.sha256((folder / "data.jsonl.gz").read_bytes()).hexdigest(),
    )
    server.shutdown()


def test_a_published_file_is_downloaded_once_and_checked(published):
    url, sha256 = published
    path = fetch(Pinned(url, sha256, "data.jsonl"))
    stamp = path.stat().st_mtime_ns
    assert fetch(Pinned(url, sha256, "data.jsonl")).stat().st_mtime_ns == stamp


def test_a_published_file_with_another_content_is_refused_and_not_kept(published, tmp_path):
    with refused("SHA-256", kind=DataError):
        fetch(Pinned(published[0], "0" * 64, "other.jsonl"))
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
