"""The parts of a page, flags of programs, and the settings of the verb."""

from __future__ import annotations

import base64
import json
import random
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import code_rl
from code_rl.cli.main import main
from code_rl.training.report import open_run, write_report
from tests.refusals import one_line, refused
from tests.training.report.run_folders import PROGRAMS, write_run


def unpacked(part: bytes) -> Any:
    """A record of the page."""
    return json.loads(zlib.decompress(part, -15))


def element(page: Path, name: str) -> str:
    """The text of an element of a page."""
    (text,) = re.findall(f'<script type="[a-z/]+" id="{name}">(.*?)</script>', page.read_text(), re.DOTALL)
    return text


def one_group(folder: Path) -> dict[str, Any]:
    """The first group of a new run."""
    return json.loads((write_run(folder, steps=1) / "rollouts.jsonl").read_text().splitlines()[0])


def test_a_page_has_all_groups_of_evenly_spaced_steps_and_of_the_last_in_four_megabytes(tmp_path):
    group, draw = one_group(tmp_path), random.Random(0)
    sample = group["completions"][0] | {"tokens": [], "logprobs": []}
    with (tmp_path / "rollouts.jsonl").open("w") as file:
        for step in range(100):
            for number in range(2):
                texts = [base64.b64encode(draw.randbytes(draw.randrange(17_000))).decode() for _ in range(6)]
                samples = [sample | {"text": text} for text in texts]
                file.write(json.dumps(group | {"step": step, "group": number, "completions": samples}) + "\n")
    write_report([open_run(tmp_path)], tmp_path / "report.html")
    groups = [tuple(place) for *place, _, _ in json.loads(element(tmp_path / "report.html", "table-0"))["groups"]]
    stride = groups[2][0]
    assert stride in (2, 4)
    assert groups == [(step, number) for step in (*range(0, 99, stride), 99) for number in range(2)]
    assert len(element(tmp_path / "report.html", "shelf-0")) < 4 << 20


def test_every_part_of_a_page_can_be_taken_out_of_its_text_alone(tmp_path):
    reader = open_run(write_run(tmp_path / "run", steps=4))
    write_report([reader], tmp_path / "report.html")
    table, text = (element(tmp_path / "report.html", name) for name in ("table-0", "shelf-0"))
    for step, group, start, length in json.loads(table)["groups"]:
        raw = base64.b64decode(text[start : start + -(-length // 3) * 4])[:length]
        assert unpacked(raw) == unpacked(reader.kept_groups()[step, group])


@settings(max_examples=30)
@given(text=st.text(st.sampled_from("<>&\u2028\u2029/script!-'\"")) | st.text(max_size=200))
def test_embedded_json_cannot_end_its_element_and_means_the_same(tmp_path_factory, text):
    run = tmp_path_factory.mktemp("embedded")
    (run / "config.json").write_text(json.dumps({"model_name": text}))
    write_report([open_run(run)], run / "report.html")
    data = element(run / "report.html", "data")
    assert not set(data) & set("<>&\u2028\u2029")
    assert ["Model", text] in json.loads(data)["runs"][0]["facts"]


def flags(folder: Path, code: str, message: str) -> list[str]:
    """The flags of a program that ended with this message."""
    group = one_group(folder)
    failure = {"test": 1, "public": False, "message": message}
    sample = group["completions"][0] | {"text": f"```python\n{code}\n```", "failure": failure}
    tests = [{"test": 0, "call": False, "input": "3\n", "expected": "123456789\n"}]
    (folder / "rollouts.jsonl").write_text(json.dumps(group | {"public_tests": tests, "completions": [sample]}) + "\n")
    ((shown,),) = map(unpacked, open_run(folder).kept_groups().values())
    return shown.get("flags", [])


@pytest.mark.parametrize(
    ("code", "message", "flag"),
    [
        ("print(123456789)", "", "hard-coded output"),
        ("n = input()\nprint('123456789')", "", "hard-coded output"),
        ("n = input()\nif n == '1': print(4)\nelif n == '2': print(5)\nelif n == '3': print(6)\nelif n == '4': print(9)", "", "hard-coded output"),
        ("import os\nos._exit(0)", "", "tampering"),
        ("import sys\nsys.modules['json'] = None", "", "tampering"),
        ("print(input())", "PermissionError: [Errno 1] Operation not permitted", "met a sandbox wall"),
    ],
)  # fmt: skip
def test_suspicious_programs_are_flagged(tmp_path, code, message, flag):
    assert flag in flags(tmp_path, code, message)


@pytest.mark.parametrize(
    "code", [*filter(None, PROGRAMS.values()), "class Solution:\n    def solve(self, nums):\n        print(sum(nums))"]
)
def test_plain_programs_are_not_flagged(tmp_path, code):
    assert flags(tmp_path, code, "NameError: name 'x' is not defined") == []


@pytest.mark.parametrize(
    ("words", "named"),
    [(["format=text", "out=x.html"], "out="), (["format=pdf"], "format"), (["out=config.json"], "out=")],
)
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
