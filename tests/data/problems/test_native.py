"""The native problem format: strict reading, faithful round trips."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.data import ProblemStore
from code_rl.data.sources import Skipped
from code_rl.grading import CallTest, Compare, Problem, SequenceTest, StdinTest
from code_rl.grading.native import format_problem, parse_problem, problem_from_json, write_problems
from code_rl.grading.sandbox import Limits
from code_rl.util.errors import DataError
from tests.grading.corpus.reading import read_problems
from tests.paths import ROOT
from tests.refusals import refused

STDIN = {"kind": "stdin", "input": "1\n", "expected": "2\n", "public": True}
CALL = {"kind": "call", "args": [1, {"__type__": "tuple", "items": [2]}], "expected": {"__type__": "set", "items": [3]}}

SEQUENCE = {"kind": "sequence", "class": "C", "calls": [["C", [2]], ["get", [1]]], "expected": [None, 1]}
RAISES = {"kind": "call", "args": [1], "raises": "ValueError", "fn_name": "g"}
CHECK = "def check(input, output, expected): return True"
SCRIPT = {"rule": "checker", "checker": CHECK}


def row(**fields):
    return {"id": "p", "statement": "add one", "tests": [STDIN], **fields}


def write_rows(path: Path, *rows) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in rows))
    return path


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
hashables = st.integers() | st.text(max_size=4) | st.tuples(st.integers(), st.text(max_size=4))
values = st.recursive(
    scalars | st.frozensets(hashables, max_size=3) | st.sets(hashables, max_size=3) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(hashables, inner, max_size=3),
    max_leaves=8,
)
identifiers = st.from_regex(r"[a-z]{1,5}", fullmatch=True)
filled = st.text(min_size=1, max_size=8).filter(str.strip)
stdin_tests = st.builds(StdinTest, st.text(), st.text(), st.booleans())
call_tests = st.builds(
    CallTest,
    st.lists(values, max_size=3).map(tuple),
    values,
    st.dictionaries(identifiers, values, max_size=2),
    st.booleans(),
)
compares = st.sampled_from(
    [
        Compare(),
        Compare("python"),
        Compare("lcb", abs_tol=1e-6),
        Compare("checker", checker=CHECK),
    ]
)


@st.composite
def problems(draw):
    fn_name = draw(st.none() | identifiers)
    tests = draw(st.lists(stdin_tests if fn_name is None else call_tests, min_size=1, max_size=3))
    return Problem(
        id=draw(filled),
        statement=draw(st.text()),
        tests=tuple(tests),
        starter_code=draw(st.none() | filled),
        fn_name=fn_name,
        time_limit_s=draw(st.floats(0.1, 100)),
        memory_limit_mb=draw(st.integers(1, 10_000)),
        compare=draw(compares),
        solutions=tuple(draw(st.lists(st.text(), max_size=2))),
        source=draw(st.text()),
        date=draw(st.none() | st.dates().map(str)),
        meta=draw(
            st.dictionaries(st.text(max_size=5), scalars, max_size=2).filter(
                lambda d: not {"preamble", "setup"} & set(d)
            )
        ),
    )


FORMS = [
    Problem("a", "", (SequenceTest("C", (("C", ({1},)), ("get", ((1, 2),))), (None, {1: 2}), True, 0.5),)),
    Problem("b", "", (CallTest((1,), raises="ValueError", fn_name="g"), CallTest((1,), 0.5, rel_tol=0.1)), None, "f"),
    Problem("c", "", (StdinTest("1", "2", abs_tol=0.0),), compare=Compare("contest", 0.1, 0.2, True, True)),
    Problem("d", "", (StdinTest("1", "2"),), compare=Compare("checker", checker=CHECK, checker_time_limit_s=2.5)),
    Problem("f", "", (CallTest((1,), fn_name="g"), SequenceTest("C", (("C", ()),), (None,)))),
]


@given(problems() | st.sampled_from(FORMS))
def test_a_problem_survives_a_line(problem):
    line = format_problem(problem)
    assert parse_problem(line.encode(), "x") == problem
    assert format_problem(parse_problem(line.encode(), "x")) == line


def test_a_row_says_no_more_than_it_must():
    made = json.loads(format_problem(Problem("a", "", (CallTest((1,), 2),), None, "f")))
    assert made["tests"] == [{"kind": "call", "args": [1], "kwargs": {}, "expected": 2, "public": False}]


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz"])
def test_files_round_trip_and_give_the_same_bytes(tmp_path, name):
    items = [Problem(id=str(i), statement="é\n", tests=(StdinTest("a\x00", "\ud800", i == 1),)) for i in range(3)]
    assert write_problems(tmp_path / name, items) == 3
    first = (tmp_path / name).read_bytes()
    assert list(read_problems(tmp_path / name)) == items
    write_problems(tmp_path / name, items)
    assert (tmp_path / name).read_bytes() == first
    assert sorted(item.name for item in tmp_path.iterdir()) == [name]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("old")

    def broken():
        yield Problem(id="a", statement="", tests=(StdinTest("", ""),))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_problems(path, broken())
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_defaults_are_those_of_the_record():
    assert problem_from_json(row()) == Problem(id="p", statement="add one", tests=(StdinTest("1\n", "2\n", True),))


def test_typed_values_are_decoded():
    problem = problem_from_json(row(tests=[CALL], fn_name="f"))
    assert problem.tests == (CallTest(args=(1, (2,)), expected={3}),)


def test_integers_of_any_length_are_read(tmp_path):
    test = {"kind": "call", "args": [], "expected": "DIGITS"}
    path = write_rows(tmp_path / "p.jsonl", row(fn_name="f", tests=[test]))
    path.write_text(path.read_text().replace('"DIGITS"', "7" * 6000))
    (problem,) = read_problems(path)
    (read,) = problem.tests
    assert isinstance(read, CallTest)
    assert read.expected % 10**6 == 777777


def test_reading_streams(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(row()) + "\nnot json\n")
    reader = read_problems(path)
    assert next(reader).id == "p"
    with refused("line 2", kind=DataError):
        next(reader)


BAD = {
    "id": [row(id=3), row(id=" "), row(id="\ud800"), {k: v for k, v in row().items() if k != "id"}],
    "statement": [row(statement=None), row(statement="a \ud83d")],
    "starter_code": [row(starter_code=" "), row(starter_code="a\ud83d")],
    "tests": [row(tests=[]), row(tests={}), row(tests=None), row(tests=[STDIN, RAISES])],
    "tests[0]": [
        row(tests=["x"]),
        row(tests=[{**STDIN, "kind": "stdio"}]),
        row(tests=[{**STDIN, "input": 5}]),
        row(tests=[{**STDIN, "public": 1}]),
        row(tests=[{**STDIN, "extra": 1}]),
        row(tests=[CALL]),
        row(tests=[STDIN], fn_name="f"),
        row(tests=[{**CALL, "args": 3}], fn_name="f"),
        row(tests=[{**CALL, "kwargs": {"not a name": 1}}], fn_name="f"),
        row(tests=[{**CALL, "expected": {"__type__": "module", "items": []}}], fn_name="f"),
        row(tests=[{**CALL, "expected": {"__type__": "set", "items": [[1]]}}], fn_name="f"),
        row(tests=[{**SEQUENCE, "calls": []}]),
        row(tests=[{**SEQUENCE, "calls": [["D", []], ["get", []]]}]),
        row(tests=[{**SEQUENCE, "calls": [["C", [2]], ["a b", []]]}]),
        row(tests=[{**SEQUENCE, "expected": [None]}]),
        row(tests=[{**SEQUENCE, "expected": [1, 1]}]),
        row(tests=[{**RAISES, "expected": 1}]),
        row(tests=[{**RAISES, "raises": "SystemExit"}]),
        row(tests=[{**RAISES, "fn_name": None}]),
        row(tests=[{**RAISES, "abs_tol": -1}]),
        row(compare="lcb-official", tests=[{**STDIN, "abs_tol": 0.1}]),
        row(tests=[{**CALL, "expected": {"__type__": ["x"], "items": []}}], fn_name="f"),
        row(tests=[{**CALL, "expected": {"__type__": "bytes", "items": [1 << 70]}}], fn_name="f"),
    ],
    "fn_name": [row(fn_name=""), row(fn_name=3)],
    "time_limit_s": [row(time_limit_s=x) for x in (0, -1, "6", True, None, float("nan"), 10**400, 1e300, 3601)],
    "memory_limit_mb": [row(memory_limit_mb=x) for x in (0, 1.5, "1", True, 2**43, (1 << 20) + 1)],
    "compare": [
        row(compare=x)
        for x in (
            "lbc",
            None,
            {"rule": "lcb", "abs_tol": -1},
            {"rule": "lcb", "tol": 1},
            {"rule": "lcb-official", "abs_tol": 1e-6},
            {"rule": "checker"},
            {"rule": "lcb", "checker": "x"},
            {"rule": "lcb-official", "exact_integers": True},
            {"rule": "contest", "ignore_case": 1},
            {"rule": "checker", "checker": "checker.py"},
            {"rule": "checker", "checker": "def check(input:\n"},
            {"rule": "checker", "checker": "def chek(a, b, c):\n    return True\n"},
            {"rule": "checker", "checker": "def check(o, e): return o == e"},
            {"rule": "checker", "checker": "def check(a, b, c, *, d): return True"},
        )
    ],
    "checker_memory_limit_mb": [row(compare={**SCRIPT, "checker_memory_limit_mb": x}) for x in (0, 10**30)],
    "checker_time_limit_s": [row(compare={**SCRIPT, "checker_time_limit_s": 1e300})],
    "solutions": [row(solutions="x"), row(solutions=[1])],
    "date": [row(date="2024-1-1"), row(date=20240101), row(date="2024-13-01"), row(date="20240101")],
    "meta": [row(meta=[]), row(meta={"preamble": 3})],
    "meta.preamble": [row(meta={"preamble": "import math\ndef f(:"})],
    "meta.setup": [row(meta={"setup": "return 1"})],
    "timelimit": [row(timelimit=6)],
}


@pytest.mark.parametrize(("field", "bad"), [(field, bad) for field, rows in BAD.items() for bad in rows])
def test_a_malformed_row_is_named(tmp_path, field, bad):
    path = write_rows(tmp_path / "p.jsonl", {**row(), "id": "before"}, bad)
    with refused("p.jsonl, line 2", field, kind=DataError):
        list(read_problems(path))


@pytest.mark.parametrize(
    "source",
    [
        "def check(*all): return True",
        "def check(a, b, c, d=1, *, e=2): return True",
        "def check(a, b, c=0, /, **more): return True",
        "def check(o, e): return o == e\ndef check(i, o, e): return o == e",
        "import functools\n@functools.partial(functools.partial, 1)\ndef check(a, b, c, d): return True",
    ],
)
def test_a_checker_that_three_arguments_can_call_is_taken(source):
    assert problem_from_json(row(compare={"rule": "checker", "checker": source})).compare.checker == source


@pytest.mark.parametrize("text", [b"[1]\n", b"{\n", b"\xff\xfe\n", b'{"a":' + b"[" * 100_000 + b"\n", b"null\n"])
def test_lines_that_are_no_objects_are_data_errors(tmp_path, text):
    path = tmp_path / "p.jsonl"
    path.write_bytes(text)
    with refused("line 1", kind=DataError):
        list(read_problems(path))


def test_files_that_cannot_be_read_are_data_errors(tmp_path):
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"x" * 1000)[:-20])
    (tmp_path / "plain.gz").write_bytes(b"{}")
    for path in (tmp_path / "absent.jsonl", tmp_path, tmp_path / "broken.gz", tmp_path / "plain.gz"):
        with refused(path.name, kind=DataError):
            list(read_problems(path))


def test_a_byte_order_mark_and_blank_lines_are_skipped(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row()).encode() + b"\r\n\n  \n")
    assert [problem.id for problem in read_problems(path)] == ["p"]


def made(folder, items, key="key"):
    store = ProblemStore(folder, key)
    for item in items[store.rows :]:
        store.leave_out(item) if isinstance(item, Skipped) else store.add(item, lambda problem, _: {"n": problem.id})
    store.finish()
    return store


ITEMS = [
    Skipped("x", "reason", "detail") if i == 5 else Problem(str(i), "x" * i, (StdinTest("", str(i)),))
    for i in range(20)
]


def test_a_store_gives_what_was_put_there_by_place_and_by_id(tmp_path):
    made(tmp_path / "s", ITEMS).close()
    store = ProblemStore(tmp_path / "s", "key")
    problems = [item for item in ITEMS if isinstance(item, Problem)]
    assert store.complete
    assert list(store) == problems
    assert list(store[3:6]) == problems[3:6]
    assert store.skipped == [ITEMS[5]]
    assert store.has("7")
    assert not store.has("5")
    for problem in [*problems, *reversed(problems), problems[3], problems[3]]:
        assert store.get(problem.id) == problem
    assert [place.about for place in store.places] == [{"n": problem.id} for problem in problems]


def test_a_store_tells_how_many_tests_a_problem_has_without_reading_it(tmp_path):
    many = [Problem(str(n), "x", tuple(StdinTest(str(i), "") for i in range(n))) for n in range(1, 5)]
    made(tmp_path / "s", many).close()
    (tmp_path / "s" / "problems.bin").write_bytes(bytes((tmp_path / "s" / "problems.bin").stat().st_size))
    store = ProblemStore(tmp_path / "s", "key")
    assert [place.tests for place in store.places] == [1, 2, 3, 4]


def test_a_store_cut_at_any_byte_goes_on_where_it_was(tmp_path):
    whole = made(tmp_path / "whole", ITEMS)
    whole.close()
    index, records = ((tmp_path / "whole" / name).read_bytes() for name in ("index.jsonl", "problems.bin"))
    for cut in range(0, len(index), 37):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "index.jsonl").write_bytes(index[:cut])
        (folder / "problems.bin").write_bytes(records[: len(records) * cut // len(index)])
        made(folder, ITEMS).close()
        assert (folder / "index.jsonl").read_bytes() == index
        assert (folder / "problems.bin").read_bytes() == records


def test_a_store_under_another_key_is_made_anew(tmp_path):
    made(tmp_path / "s", ITEMS).close()
    other = made(tmp_path / "s", ITEMS[:3], "other")
    assert [problem.id for problem in other] == ["0", "1", "2"]


def test_a_damaged_record_is_named(tmp_path):
    made(tmp_path / "s", ITEMS).close()
    (tmp_path / "s" / "problems.bin").write_bytes(bytes((tmp_path / "s" / "problems.bin").stat().st_size))
    with refused("record 4", kind=DataError):
        ProblemStore(tmp_path / "s", "key")[4]


def test_the_page_on_judging_states_the_limits_that_hold_without_any():
    page = " ".join((ROOT / "docs" / "judging.md").read_text().split())
    problem, limits = (
        problem_from_json({"id": "a", "statement": "", "tests": [{"kind": "stdin", "input": "", "expected": ""}]}),
        Limits(),
    )
    assert (limits.cpu_s, limits.memory_mb) == (problem.time_limit_s, problem.memory_limit_mb)
    assert f"| memory (`memory_limit_mb`) | {problem.memory_limit_mb} MB by default" in page
    assert f"| output | {limits.output_bytes >> 20} MiB" in page
    for stated in (f"{problem.time_limit_s:g} s by default", f"{limits.processes}", f"{limits.file_mb} MB"):
        assert stated in page
    compare = problem.compare
    assert (
        f"`checker_time_limit_s` ({compare.checker_time_limit_s:g}), `checker_memory_limit_mb` ({compare.checker_memory_limit_mb})"
        in page
    )
