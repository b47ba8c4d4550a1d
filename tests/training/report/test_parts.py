"""Sampling of rollouts, flags, token pieces, the settings of the verb."""

from __future__ import annotations

import base64
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import code_rl
from code_rl.cli.main import main
from code_rl.training.report.groups import BLOCKED, HARD_CODED, TAMPERING, flags
from code_rl.training.report.page import embed, embedded_rollouts
from code_rl.training.report.run import DownsampledGroups, open_run
from tests.refusals import one_line, refused
from tests.training.report.run_folders import PROGRAMS, write_run

PUBLIC = [{"test": 0, "input": "3\n", "expected": "123456789\n"}]


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(10, 400), min_size=3, max_size=60))
def test_a_shelf_stays_in_its_budget_and_keeps_whole_steps_evenly_spaced(sizes):
    shelf = DownsampledGroups(budget=1500)
    for step, size in enumerate(sizes):
        for group in range(2):
            record = [base64.b64encode(f"{step}/{group}".encode() * size).decode()]
            if shelf.wants(step):
                shelf.put((step, group), record)
    kept: dict[int, set[int]] = {}
    for step, group in shelf.groups:
        kept.setdefault(step, set()).add(group)
    assert sorted(kept) == [step for step in range(len(sizes)) if step % shelf.stride == 0]
    assert all(groups == {0, 1} for groups in kept.values())
    assert sum(map(len, shelf.groups.values())) <= 1500 or len(kept) <= 2


def test_every_part_of_a_book_can_be_taken_out_of_its_text_alone(tmp_path):
    reader = open_run(write_run(tmp_path / "run", steps=4))
    groups, (text, table) = reader.kept_groups(), embedded_rollouts(reader)
    for step, group, start, length in json.loads(table)["groups"]:
        raw = base64.b64decode(text[start : start + -(-length // 3) * 4])[:length]
        assert json.loads(zlib.decompress(raw, -15)) == json.loads(zlib.decompress(groups[step, group], -15))


@settings(max_examples=30)
@given(st.recursive(st.text() | st.integers(-5, 5), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_embedded_json_cannot_end_its_element_and_means_the_same(value):
    text = embed(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("code", "message", "flag"),
    [
        ("print(123456789)", "", HARD_CODED),
        ("n = input()\nprint('123456789')", "", HARD_CODED),
        ("n = input()\nif n == '1': print(4)\nelif n == '2': print(5)\nelif n == '3': print(6)\nelif n == '4': print(9)", "", HARD_CODED),
        ("import os\nos._exit(0)", "", TAMPERING),
        ("import sys\nsys.modules['json'] = None", "", TAMPERING),
        ("print(input())", "PermissionError: [Errno 1] Operation not permitted", BLOCKED),
    ],
)  # fmt: skip
def test_suspicious_programs_are_flagged(code, message, flag):
    assert flag in flags(code, message, PUBLIC, reads_stdin=True)


@pytest.mark.parametrize(
    "code", [*filter(None, PROGRAMS.values()), "class Solution:\n    def solve(self, nums):\n        print(sum(nums))"]
)
def test_plain_programs_are_not_flagged(code):
    assert flags(code, "NameError: name 'x' is not defined", PUBLIC, reads_stdin=True) == []


@pytest.mark.parametrize(("words", "named"), [(["format=text", "out=x.html"], "out="), (["format=pdf"], "format")])
def test_settings_that_do_not_go_together_are_refused_by_name(words, named, capsys):
    assert main(["report", "log_path=run", *words]) == 2
    one_line(capsys, named)


def test_the_verb_writes_a_page_and_prints_text(tmp_path, capsys):
    run, other = write_run(tmp_path / "run", steps=5), write_run(tmp_path / "other", steps=5, seed=1)
    assert main(["report", f"log_path={run}", f"compare={other}", f"out={tmp_path / 'both.html'}"]) == 0
    assert str(tmp_path / "both.html") in capsys.readouterr().out
    assert (tmp_path / "both.html").read_text().count('id="shelf-') == 2
    assert main(["report", f"log_path={run}", "format=text"]) == 0
    assert "Yes, it learned." in capsys.readouterr().out
    assert main(["report", f"log_path={tmp_path / 'nothing'}"]) == 2
    assert main(["report", f"log_path={run}", "out=/nowhere/at/all.html"]) == 2


def test_the_library_writes_the_page_of_one_run_or_of_several_to_any_file(tmp_path):
    runs = [write_run(tmp_path / name, steps=5, seed=seed) for seed, name in enumerate(("one", "two", "three"))]
    assert code_rl.report(runs[0], browse=False) == runs[0] / "report.html"
    result = code_rl.TrainingResult(runs[1], [])
    page = code_rl.report(str(runs[0]), compare=[result, runs[2]], out=tmp_path / "all.html", browse=False)
    assert page.read_text().count('id="shelf-') == 3
    assert code_rl.report(runs[0], compare=result, out=page, browse=False).read_text().count('id="shelf-') == 2
    with refused("out="):
        code_rl.report(runs[0], out="/nowhere/at/all.html", browse=False)
    with refused("compare="):
        code_rl.report(runs[0], compare=runs * 3, browse=False)
