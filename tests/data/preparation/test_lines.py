"""Rows that are written give the same problem, and the same bytes, when they are read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from code_rl.data.preparation import PrepareConfig
from code_rl.data.preparation.normalise import open_source
from code_rl.data.preparation.workspace import Candidate, Workspace, summarize
from code_rl.grading import CallTest, Problem, StdinTest
from code_rl.grading.native import format_problem

NASTY = st.text() | st.sampled_from(['],"time_limit_s":9,"meta":{', '"tests":[]', "\\", "\ud800", "}\n{", '"meta"'])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NASTY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY, inner, max_size=2),
    max_leaves=5,
)
STDIN = st.builds(StdinTest, NASTY, NASTY, public=st.booleans())
CALLS = st.builds(
    CallTest,
    st.tuples(VALUES),
    VALUES,
    kwargs=st.dictionaries(st.sampled_from(["time_limit_s", "meta", "x"]), VALUES, max_size=2),
    public=st.booleans(),
)
PROBLEMS = st.builds(
    Problem,
    id=st.text("ab", min_size=1),
    statement=NASTY,
    tests=st.lists(STDIN, min_size=1, max_size=3).map(tuple),
    solutions=st.lists(NASTY, max_size=2).map(tuple),
    time_limit_s=st.sampled_from([1, 2.5, 6.0]),
    meta=st.dictionaries(st.sampled_from(["time_limit_s", "tests", "note"]), NASTY | st.lists(NASTY), max_size=2),
) | st.builds(
    Problem, id=st.just("c"), statement=NASTY, fn_name=st.just("f"), tests=st.lists(CALLS, min_size=1, max_size=3).map(tuple)
)  # fmt: skip
CARDS = st.sampled_from([{}, {"verified": True, "passed": ["normalise", "filter"]}])
LIMITS = st.sampled_from([None, 3.0, 12.0])


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("lines")
    with Workspace(PrepareConfig(dataset="builtin", out=str(folder)), open_source("builtin"), "key") as workspace:
        yield workspace


@settings(max_examples=60, deadline=None)
@given(problem=PROBLEMS, metadata=CARDS, time_limit_s=LIMITS)
def test_a_line_is_that_of_the_problem_as_it_stands(workspace, problem, metadata, time_limit_s):
    entry = summarize(problem, len(workspace.store), b"")
    workspace.store.add(problem)
    candidate = Candidate(entry, metadata, time_limit_s)
    stored = dataclasses.replace(problem, time_limit_s=float(problem.time_limit_s))
    assert workspace.store[entry.place] == stored
    assert format_problem(workspace.store[entry.place]) == format_problem(stored)
    meta = {**problem.meta, "prepare": metadata} if metadata else problem.meta
    limit = time_limit_s or stored.time_limit_s
    assert workspace.load(candidate) == dataclasses.replace(stored, meta=meta, time_limit_s=limit)
