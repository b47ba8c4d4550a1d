"""LiveCodeBench's rows: private tests as upstream packs them, and pickles that are no string of JSON."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.data.sources import Skipped, livecodebench
from code_rl.grading import CallTest, Problem, StdinTest
from tests.grading.corpus.rooms import data_file
from tests.kinds import each_is

PUBLIC = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
PRIVATE = [{"input": "5 6\n", "output": "11\n", "testtype": "stdin"}]


def pack(value, protocol=pickle.HIGHEST_PROTOCOL):
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


def row(**changes):
    return {
        "question_title": "Sum",
        "question_content": "Print the sum.",
        "platform": "atcoder",
        "question_id": "abc999_a",
        "contest_id": "abc999",
        "contest_date": "2024-08-01T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(PUBLIC),
        "private_test_cases": pack(json.dumps(PRIVATE)),
        "metadata": "{}",
        **changes,
    }


def test_a_stdin_row_becomes_a_problem_with_public_tests_first(court):
    problem = court.item(row())
    assert problem.tests == (StdinTest("1 2\n", "3\n", public=True), StdinTest("5 6\n", "11\n"))
    assert (problem.id, problem.date, problem.fn_name) == ("abc999_a", "2024-08-01", None)
    assert problem.meta == {"title": "Sum", "platform": "atcoder", "difficulty": "easy", "contest_id": "abc999"}


def test_a_functional_row_has_one_json_value_a_line_as_arguments(court):
    tests = json.dumps([{"input": '[1, 2]\n"x"\n3.5', "output": "[[1], null]", "testtype": "functional"}])
    starter = "class Solution:\n    def solve(self, xs, s, f):\n        "
    called = {"starter_code": starter, "metadata": '{"func_name": "solve"}'}
    problem = court.item(row(private_test_cases=tests, public_test_cases="[]", **called))
    assert problem.tests == (CallTest(([1, 2], "x", 3.5), [[1], None]),)
    assert (problem.fn_name, problem.starter_code) == ("solve", starter)


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_private_tests_survive_every_packing(court, pairs):
    text = json.dumps([{"input": given, "output": wanted, "testtype": "stdin"} for given, wanted in pairs])
    packings = [text, *(pack(text, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1))]
    for problem in court.dataset(*(row(private_test_cases=packed) for packed in packings)):
        assert problem.tests[1:] == tuple(StdinTest(given, wanted) for given, wanted in pairs)


class Runs:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(court, tmp_path, protocol):
    mark = tmp_path / "ran"
    found = court.item(row(private_test_cases=pack(Runs(os.mkdir, str(mark)), protocol)))
    assert (type(found), found.reason) == (Skipped, "pickle_refused")
    assert not mark.exists()


REGISTERED = base64.b64encode(zlib.compress(b"\x80\x02\x82\x01.")).decode()  # through the extension registry


@pytest.mark.parametrize("packed", [REGISTERED, *map(pack, (int, len, complex(1, 2), {1, 2}, b"[]", ["[]"], None, 7))])
def test_a_pickle_of_anything_but_a_string_is_refused(court, packed):
    assert court.item(row(private_test_cases=packed)).reason in ("pickle_refused", "bad_private_tests")


@given(st.binary(max_size=200))
def test_broken_bytes_are_a_reason_and_never_a_crash(court, data):
    texts = (
        base64.b64encode(data).decode(),
        base64.b64encode(zlib.compress(data)).decode(),
        base64.b64encode(zlib.compress(data)[:-1]).decode(),
        data.decode("latin-1") + "x",
    )
    each_is(Skipped, court.dataset(*(row(private_test_cases=text) for text in texts)))


def test_tests_that_unpack_beyond_the_limit_are_refused(court, monkeypatch):
    monkeypatch.setattr(livecodebench, "MAX_PRIVATE_BYTES", 1 << 16)
    packed = pack("[" + " " * (1 << 20) + "]")
    assert court.item(row(private_test_cases=packed)).reason == "bad_private_tests"


CALL = '[{"input": "1", "output": "1", "testtype": "functional"}]'
BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("missing_field", {"question_id": None}),
    ("wrong_field_type", {"starter_code": 3}),
    ("bad_date", {"contest_date": "last spring"}),
    ("bad_private_tests", {"private_test_cases": "%%"}),
    ("bad_tests", {"public_test_cases": "[1]"}),
    ("bad_tests", {"public_test_cases": "[]", "private_test_cases": "[]"}),
    ("bad_tests", {"private_test_cases": CALL, "metadata": '{"func_name": "f"}'}),
    ("bad_tests", {"private_test_cases": CALL, "public_test_cases": "[]"}),
    ("bad_tests", {"metadata": "["}),
)


@pytest.mark.parametrize(("reason", "changes"), BAD)
def test_a_bad_row_is_skipped_with_its_reason_and_the_next_is_read(court, reason, changes):
    first, second = court.dataset(row(**changes), row())
    assert (type(first), first.reason, type(second)) == (Skipped, reason, Problem)


def test_the_real_sample_rows_become_problems_with_all_their_tests(court):
    with data_file("sandboxfusion/code_eval_live_code_bench_v1.jsonl").open() as lines:
        samples = [json.loads(line) for line in lines]
    rows = [
        row(
            question_id=str(s["id"]),
            question_content=s["content"],
            private_test_cases=s["test"],
            public_test_cases="[]",
        )
        for s in samples
    ]
    stdin, call, _ = each_is(Problem, court.dataset(*rows))
    assert stdin.tests[1] == StdinTest("1\nabc\n", "YES\n")
    assert (call.fn_name, call.tests[1]) == ("countSeniors", CallTest((["1313579440F2036", "2921522980M5644"],), 0))
