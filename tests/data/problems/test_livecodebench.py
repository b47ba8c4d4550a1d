"""LiveCodeBench's rows: shards, windows, private tests as upstream packs them, and pickles that are no string of JSON."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import zlib
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.data.sources import livecodebench
from code_rl.data.sources.livecodebench import (
    SHARDS,
    decode_private_tests,
    parse_window,
    release_shards,
    shard_paths,
)
from code_rl.data.sources.records import RowError, Skipped
from code_rl.grading import CallTest, Problem, StdinTest
from tests.grading.corpus.reading import read_livecodebench, read_rows
from tests.grading.corpus.rooms import data_file
from tests.kinds import each_is
from tests.refusals import refused

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


def only(rows, **window):
    (item,) = list(read_livecodebench(rows, parse_window(window.get("start"), window.get("end"))))
    return item


def test_a_stdin_row_becomes_a_problem_with_public_tests_first():
    problem = only([row()])
    assert problem.tests == (StdinTest("1 2\n", "3\n", public=True), StdinTest("5 6\n", "11\n"))
    assert (problem.id, problem.date, problem.fn_name) == ("abc999_a", "2024-08-01", None)
    assert problem.meta == {"title": "Sum", "platform": "atcoder", "difficulty": "easy", "contest_id": "abc999"}


def test_a_functional_row_has_one_json_value_a_line_as_arguments():
    tests = [{"input": '[1, 2]\n"x"\n3.5', "output": "[[1], null]", "testtype": "functional"}]
    starter = "class Solution:\n    def solve(self, xs, s, f):\n        "
    problem = only(
        [row(private_test_cases=json.dumps(tests), public_test_cases="[]", starter_code=starter,
             metadata='{"func_name": "solve"}')]
    )  # fmt: skip
    assert problem.tests == (CallTest(([1, 2], "x", 3.5), [[1], None]),)
    assert (problem.fn_name, problem.starter_code) == ("solve", starter)


@given(st.lists(st.fixed_dictionaries({"input": st.text(), "output": st.text(), "testtype": st.just("stdin")})))
def test_private_tests_survive_every_packing(tests):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert decode_private_tests(pack(json.dumps(tests), protocol)) == tests
    assert decode_private_tests(json.dumps(tests)) == tests


class Runs:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path, protocol):
    mark = tmp_path / "ran"
    item = only([row(private_test_cases=pack(Runs(os.mkdir, str(mark)), protocol))])
    assert isinstance(item, Skipped)
    assert item.reason == "pickle_refused"
    assert not mark.exists()


REGISTERED = base64.b64encode(zlib.compress(b"\x80\x02\x82\x01.")).decode()  # through the extension registry


@pytest.mark.parametrize("packed", [REGISTERED, *map(pack, (int, len, complex(1, 2), {1, 2}, b"[]", ["[]"], None, 7))])
def test_a_pickle_of_anything_but_a_string_is_refused(packed):
    with pytest.raises(RowError) as caught:
        decode_private_tests(packed)
    assert caught.value.reason in ("pickle_refused", "bad_private_tests")


@given(st.binary(max_size=200))
def test_broken_bytes_are_a_reason_and_never_a_crash(data):
    for text in (
        base64.b64encode(data).decode(),
        base64.b64encode(zlib.compress(data)).decode(),
        base64.b64encode(zlib.compress(data)[:-1]).decode(),
        data.decode("latin-1") + "x",
    ):
        with contextlib.suppress(RowError):
            assert isinstance(decode_private_tests(text), int | float | str | list | dict | None)


def test_tests_that_unpack_beyond_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr(livecodebench, "MAX_PRIVATE_BYTES", 1 << 16)
    with pytest.raises(RowError):
        decode_private_tests(pack("[" + " " * (1 << 20) + "]"))


CALL = '[{"input": "1", "output": "1", "testtype": "functional"}]'
BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("missing_field", {"question_content": None}),
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
def test_a_bad_row_is_skipped_with_its_reason_and_the_next_is_read(reason, changes):
    bad = row(**changes)
    if reason == "missing_field":
        del bad["question_content"]
    first, second = read_livecodebench([bad, row()])
    assert isinstance(first, Skipped)
    assert first.reason == reason
    assert isinstance(second, Problem)


@given(st.dates(), st.dates(), st.dates(), st.times().map(lambda t: t.isoformat("seconds")))
def test_a_window_holds_both_its_ends_and_all_hours_of_the_last_day(day, one, other, hour):
    start, end = min(one, other), max(one, other)
    item = only([row(contest_date=f"{day}T{hour}")], start=str(start), end=str(end))
    assert isinstance(item, Problem) == (start <= day <= end)


def test_rows_outside_the_window_are_counted_and_their_tests_are_not_decoded():
    item = only([row(private_test_cases="%%")], start="2024-08-02")
    assert isinstance(item, Skipped)
    assert item.reason == "outside_window"


@pytest.mark.parametrize(("start", "end"), [("2024-13-01", None), (None, "soon"), ("2025-01-02", "2025-01-01")])
def test_a_window_that_cannot_be_is_refused(start, end):
    with refused("_date="):
        parse_window(start, end)


def test_releases_are_cumulative_and_versions_are_single_shards():
    sizes = dict(zip(SHARDS, (400, 111, 101, 101, 167, 175), strict=True))
    totals = [sum(sizes[name] for name in release_shards(f"release_v{n}")) for n in range(1, 7)]
    assert totals == [400, 511, 612, 713, 880, 1055]
    assert release_shards("v6") == ("test6.jsonl",)
    assert release_shards("v1") == ("test.jsonl",)
    assert release_shards("v2_v4") == ("test2.jsonl", "test3.jsonl", "test4.jsonl")
    assert release_shards("release_latest") == release_shards("release_v6") == SHARDS


@pytest.mark.parametrize("version", ["release_v7", "v0", "v7", "v4_v2", "latest", "release_v1_v2", ""])
def test_an_unknown_release_is_refused_with_those_that_exist(version):
    with refused("release_v1", "release_v6"):
        release_shards(version)


def test_a_folder_of_shards_is_read_in_order_and_a_missing_one_is_named(tmp_path):
    for name, question in zip(SHARDS[:2], ("a", "b"), strict=True):
        (tmp_path / name).write_text(json.dumps(row(question_id=question)) + "\n")
    problems = read_livecodebench(each for path in shard_paths(tmp_path, "release_v2") for each in read_rows(path))
    assert [problem.id for problem in each_is(Problem, problems)] == ["a", "b"]
    with refused("test3.jsonl"):
        shard_paths(tmp_path, "release_v3")


def test_the_279_dates_of_v5_fall_into_its_published_window_and_a_part_of_them_into_a_part_of_it():
    with data_file("qwq_lcb_prompts/livecodebench_v5.jsonl").open() as lines:
        days = [date.fromisoformat(json.loads(line)["contest_date"][:10]) for line in lines]
    assert sum(day in parse_window("2024-08-01", "2025-02-01") for day in days) == 279
    assert sum(day in parse_window("2024-08-04", "2025-01-03") for day in days) < 279


def test_the_real_sample_rows_become_problems_with_all_their_tests():
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
    stdin, call, _ = each_is(Problem, read_livecodebench(rows))
    assert stdin.tests[1] == StdinTest("1\nabc\n", "YES\n")
    assert (call.fn_name, call.tests[1]) == ("countSeniors", CallTest((["1313579440F2036", "2921522980M5644"],), 0))
