"""`dataset=`: files of every kind, folders, mixtures and prepared folders; the same rows in the same order each time; clear refusals."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

import code_rl
from code_rl.data import find_data, load_dataset, load_test_splits, open_dataset
from code_rl.grading import Problem, StdinTest
from code_rl.grading.native import format_problem, write_problems
from code_rl.grading.values import MAX_DEPTH
from code_rl.policy.prompt_templates import build_prompt, build_question
from code_rl.util.errors import ConfigError, DataError
from tests.data.loading.raw_rows import SAMPLES, SUM, problem_in, taco
from tests.paths import copy_source
from tests.refusals import refused


def row(number):
    return taco(["1 2"], ["3"], SUM, None) | {"problem": f"Number {number}."}


def native(*names):
    return [Problem(name, "s", (StdinTest("1", "1"),)) for name in names]


def lines(count):
    return "".join(json.dumps(row(number)) + "\n" for number in range(count)).encode()


def write(path, count):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        table = pyarrow.Table.from_pylist([row(number) for number in range(count)])
        pyarrow.parquet.write_table(table, path, row_group_size=3)
    elif path.suffix == ".json":
        path.write_text(json.dumps([row(number) for number in range(count)]))
    else:
        packers: dict[str, Any] = {".gz": gzip.compress, ".zst": zstandard.compress}
        path.write_bytes(packers.get(path.suffix, bytes)(lines(count)))
    return path


def load(path, say=lambda _: None):
    return asyncio.run(load_dataset(open_dataset(str(path)), None, say))


def statements(dataset, skip=0):
    return [item.statement for item in dataset.items(skip)]


def ids(dataset, skip=0):
    return [item.id for item in dataset.items(skip)]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODE_RL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_every_kind_of_file_gives_the_same_rows_as_often_as_one_likes(tmp_path, suffix):
    dataset = open_dataset(str(write(tmp_path / f"rows{suffix}", 8)))
    expected, names = [f"Number {number}." for number in range(8)], [f"rows/{number}" for number in range(8)]
    assert statements(dataset) == statements(dataset) == expected
    for skip in (0, 1, 3, 7, 8, 20):
        assert (statements(dataset, skip), ids(dataset, skip)) == (expected[skip:], names[skip:])


READS_ANEW = """
import os, sys, code_rl
load, changes = code_rl.load_problems, ["", "", *sys.argv[2:]]
for changed in changes:
    if changed:
        with open(f"src/code_rl/{changed}", "a") as source:
            source.write("# changed")
    print("load", flush=True)
    if not (child := os.fork()):  # a process that has digested no source yet
        load(sys.argv[1])
        sys.exit()
    os.waitpid(child, 0)
"""


def test_a_store_is_made_anew_once_a_readers_source_has_changed(tmp_path):
    copy_source(tmp_path)
    readers = ("data/sources/competition.py", "data/resolve.py", "grading/problem.py", "util/data_files.py")
    words = [sys.executable, "-c", READS_ANEW, str(write(tmp_path / "rows.jsonl", 1)), *readers]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert ["reading" in said for said in done.stdout.split("load\n")[1:]] == [True, False, *[True] * len(readers)]


def test_shards_of_a_folder_are_one_set_by_split(tmp_path):
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        write(tmp_path / "data" / f"{name}.parquet", 2)
    assert len(list(open_dataset(str(tmp_path)))) == 4
    assert len(list(open_dataset(f"{tmp_path}:test"))) == 2
    assert len(list(open_dataset(str(tmp_path), "test"))) == 2
    assert statements(open_dataset(str(tmp_path)), skip=3) == ["Number 1."]


def test_several_sets_are_read_one_after_the_other_and_skip_runs_through_them(tmp_path):
    one, two = write(tmp_path / "one.jsonl", 3), write(tmp_path / "two.parquet", 2)
    both = open_dataset(f"{one},{two}")
    assert ids(both) == ["one/0", "one/1", "one/2", "two/0", "two/1"]
    assert ids(both, 4) == ["two/1"]
    held_out = find_data("builtin", f"{one},{two}", evaluates=True).test
    assert {name: ids(split) for name, split in held_out.items()} == {"one": ids(both)[:3], "two": ids(both)[3:]}


def test_so_many_files_that_their_names_are_too_long_for_a_path_are_one_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [write(tmp_path / f"train-{number:05}-of-00030.jsonl", 1).name for number in range(30)]
    assert len(ids(open_dataset(",".join(names)))) == 30


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_a_prepared_folder_has_the_splits_of_its_manifest(tmp_path, suffix):
    folder = tmp_path / "prepared"
    folder.mkdir()
    for split in ("train", "test"):
        problems = native(f"{split}-1", f"{split}-2")
        if suffix == ".parquet":
            rows = [json.loads(format_problem(problem)) for problem in problems]
            for each in rows:
                each.update({name: json.dumps(each[name]) for name in ("tests", "compare", "solutions", "meta")})
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}.parquet")
        else:
            write_problems(folder / f"{split}{suffix}", problems)
    splits = {split: {"file": f"{split}{suffix}", "problems": 2} for split in ("train", "test")}
    (folder / "manifest.json").write_text(json.dumps({"format": "code-rl-prepared", "version": 1, "splits": splits}))
    assert list(open_dataset(str(folder))) == native("train-1", "train-2")
    assert list(open_dataset(f"{folder}:test")) == native("test-1", "test-2")
    held_out = find_data(str(folder), None, evaluates=True).test
    assert {name: list(split) for name, split in held_out.items()} == {"test": native("test-1", "test-2")}


@pytest.mark.parametrize(
    ("setting", "error", "named"),
    [
        ("deepcodr", ConfigError, ("deepcoder",)),
        ("nowhere.jsonl", ConfigError, ("nowhere.jsonl",)),
        ("./nowhere", ConfigError, ("./nowhere",)),
        ("", ConfigError, ("dataset=",)),
        ("taco,", ConfigError, ("taco,",)),
        ("taco@", ConfigError, ("taco@",)),
        ("deepcoder:valid", ConfigError, ("train", "test")),
        ("code-r1@abc", ConfigError, ("leetcode@REVISION:train,taco-verified@REVISION:train",)),
        ("livecodebench:release_v9", ConfigError, ("release_v1", "release_v6")),
        ("{tmp}/empty", ConfigError, ("train",)),
        ("{tmp}/two", ConfigError, ("set-v1", "set-v2")),
        ("{tmp}/part", ConfigError, ("1 of 2",)),
        ("{tmp}/rows.jsonl:test", ConfigError, ("rows.jsonl:test",)),
        ("{tmp}/rows.txt", ConfigError, ("rows.txt",)),
        ("{tmp}/pointer.jsonl", DataError, ("pointer.jsonl", "git lfs pull")),
        ("{tmp}/bad.parquet", DataError, ("bad.parquet",)),
        ("{tmp}/bad.jsonl.zst", DataError, ("bad.jsonl.zst",)),
        ("{tmp}/bad.jsonl.gz", DataError, ("bad.jsonl.gz",)),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path, setting, error, named):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "two" / "set-v1-train.jsonl", 1)
    write(tmp_path / "two" / "set-v2-train.jsonl", 1)
    write(tmp_path / "part" / "train-00000-of-00002.parquet", 1)
    write(tmp_path / "rows.jsonl", 1)
    (tmp_path / "rows.txt").write_text("x")
    (tmp_path / "pointer.jsonl").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    for name in ("bad.parquet", "bad.jsonl.zst", "bad.jsonl.gz"):
        (tmp_path / name).write_bytes(b"not that")
    with refused(*named, kind=error):
        list(open_dataset(setting.format(tmp=tmp_path)))


def test_a_module_of_ones_own_may_be_called_almost_as_a_set(tmp_path, monkeypatch):
    (tmp_path / "codes.py").write_text(
        "import code_rl\nPROBLEMS = [code_rl.Problem('a', 'Say 1.', (code_rl.StdinTest('', '1'),))]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert [problem.id for problem in code_rl.load_problems("codes:PROBLEMS")] == ["a"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_cut_short_is_an_error_not_a_shorter_set(tmp_path, suffix):
    path = write(tmp_path / f"rows.jsonl{suffix}", 200)
    path.write_bytes(path.read_bytes()[:-3])
    with refused(path.name, kind=DataError):
        list(open_dataset(str(path)))


def test_a_zstd_file_may_have_several_frames(tmp_path):
    path = tmp_path / "rows.jsonl.zst"
    path.write_bytes(zstandard.compress(lines(3)) + zstandard.compress(lines(2)))
    assert len(list(open_dataset(str(path)))) == 5


@pytest.mark.parametrize(
    ("names", "split", "chosen"),
    [
        (["LeetCode-v0.3.1-train.jsonl", "LeetCode-v0.3.1-test.jsonl"], "test", 1),
        (["default/train/0000.jsonl", "default/train/0001.jsonl", "default/test/0000.jsonl"], "train", 2),
        (["ALL/train-00000-of-00001.jsonl", "README.md", "taco.py"], "train", 1),
    ],
)
def test_files_of_a_folder_are_chosen_by_split(tmp_path, names, split, chosen):
    for number, name in enumerate(names):
        write(tmp_path / name, number + 1)
    assert len(open_dataset(f"{tmp_path}:{split}").provenance()[0]["files"]) == chosen
    first = next(number for number, name in enumerate(names) if split in name)
    assert len(ids(open_dataset(f"{tmp_path}:{split}"))) == sum(range(first + 1, first + chosen + 1))


def test_rows_left_out_are_counted_and_said_and_repeated_ids_too(tmp_path):
    path = tmp_path / "rows.jsonl"
    named = taco(["1 2"], ["3"], SUM, None) | {"id": 1}
    path.write_text("".join(json.dumps(each) + "\n" for each in (named, {"what": 1}, named, row(3))))
    said: list[str] = []
    problems = load(path, said.append)
    assert [problem.id for problem in problems] == ["rows/1", "rows/3"]
    assert any("2 problems; left out: 1 duplicate_id, 1 unknown_shape" in line for line in said), said
    again: list[str] = []
    assert list(load(path, again.append)) == list(problems)
    assert not any("reading" in line for line in again)
    assert any("left out" in line for line in again)


def test_a_changed_file_is_read_anew(tmp_path):
    path = write(tmp_path / "rows.jsonl", 2)
    assert len(load(path)) == 2
    write(path, 5)
    assert len(load(path)) == 5


def test_a_long_reading_says_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("code_rl.data.load.PROGRESS_S", -1.0)
    said: list[str] = []
    load(write(tmp_path / "rows.jsonl", 3), said.append)
    assert said[-1].endswith("3 rows so far")


TWO_PLUS_TWO = '{"id": "a1", "statement": "s", "tests": [{"kind": "stdin", "input": "2 2", "expected": "4"}]}\n'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (TWO_PLUS_TWO.replace("}\n", ', "x": 1}\n'), ("line 1", '"x"')),
        (TWO_PLUS_TWO + "{\n" + TWO_PLUS_TWO.replace("a1", "") + "[1]\n", ("line 2", "line 3", "line 4")),
        ('{"unknown": 1}\n{\n', ("rows.jsonl, line 2",)),
        (TWO_PLUS_TWO * 2, ("rows.jsonl", "a1")),
        ('[{"id": "a"}]\n', ("rows.jsonl, line 1", ".json")),
        ('[\n{"id": "a"}\n]\n', ("rows.jsonl, line 1", ".json")),
    ],
)
def test_a_native_file_must_be_right_in_every_row(tmp_path, text, named):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with refused(*named, kind=DataError):
        load(path)


def test_a_data_set_without_held_out_problems_is_refused_before_anything_runs(tmp_path):
    path = str(write(tmp_path / "rows.jsonl", 1))
    with refused("test_dataset="):
        find_data(path, None, evaluates=True)
    assert find_data(path, None, evaluates=False).test == {}
    data = find_data(path, path, evaluates=True)
    assert {name: len(split) for name, split in asyncio.run(load_test_splits(data, -1, None)).items()} == {"test": 1}


def test_a_resumed_run_reads_what_it_was_made_with(tmp_path):
    path, held_out = write(tmp_path / "rows.jsonl", 1), write(tmp_path / "other.jsonl", 2)
    data = find_data(str(path), str(held_out), evaluates=True)
    kept = json.loads(json.dumps(data.describe()))
    assert kept == {"train": [str(path)], "test test": [str(held_out)]}
    assert find_data("taco", "apps", evaluates=True, pins=kept) == find_data(str(path), str(held_out), evaluates=True, pins=kept)  # fmt: skip


def test_the_course_s_prompt_of_a_raw_row_is_the_prompt_that_training_shows(court):
    plain = [
        sample for sample in SAMPLES if {"problem", "question", "question_content", "description"} & sample.row.keys()
    ]
    same = 0
    for sample in plain:
        problem = problem_in(court.item(sample.row))
        if problem.starter_code == (sample.row.get("starter_code") or None):
            assert build_question(sample.row) == build_prompt(problem.view()), sample.name
            same += 1
    assert same >= 10


def test_the_course_s_prompt_of_rows_whose_prompt_is_code():
    leetcode = {"task_id": "a", "entry_point": "Solution().f", "prompt": "import math", "problem_description": "Do it.", "starter_code": "class Solution:"}  # fmt: skip
    assert "Do it." in build_question(leetcode)
    assert "import math" not in build_question(leetcode)
    humaneval = {"entry_point": "f", "prompt": 'def f(x):\n    """Do it."""\n', "canonical_solution": "    return x"}
    assert '"""Do it."""' in build_question(humaneval)
    assert "starter code" in build_question(humaneval)


def deep(depth, wrap):
    value: object = 1
    for _ in range(depth):
        value = wrap(value)
    return taco([[1]], [value], name="f")


def test_a_row_whose_expected_value_is_nested_too_deeply_is_left_out_by_name(court):
    wrapped = deep(MAX_DEPTH, lambda v: [v, 2]), deep(MAX_DEPTH + 1, lambda v: [v, 2]), deep(450, lambda v: {"k": v})
    store = court.load(*(each | {"solutions": None} for each in wrapped))
    assert (len(store), store.left_out()) == (1, {"value_not_plain": 2})
