"""Our verdicts against those of the `evalplus` package on the same samples: right and wrong programs of several qualities.

Set CODE_RL_EVALPLUS to the Python of an environment with `evalplus==0.3.1` (and tree-sitter, numpy and the like, which it imports).
All parts together are 2,925 samples; each takes minutes, and `-k "mbpp-3"` takes one.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from code_rl.cli.main import main
from code_rl.data.preparation.wrong_programs import mutants
from tests.grading.corpus.rooms import data_file

PYTHON = os.environ.get("CODE_RL_EVALPLUS")
SETS = {
    "mbpp": ("mbpp+", "mbppplus/MbppPlus.jsonl.gz", "MBPP_OVERRIDE_PATH"),
    "humaneval": ("humaneval+", "humanevalplus/HumanEvalPlus-Mini.jsonl.gz", "HUMANEVAL_OVERRIDE_PATH"),
}
PARTS = {"mbpp": 6, "humaneval": 3}
MUTANTS = {"mbpp": 2, "humaneval": 7}
CPU_LIMIT_S = 3
WALL_LIMIT_S = 20
"""evalplus's limits are of wall time: on a busy machine the usual one second stops HumanEval/139's reference."""

DIFFERENCES = {
    ("humaneval", "HumanEval/32"): "evalplus 0.3.1 checks no input of find_zero, and accepts no program at all",
    ("mbpp", "Mbpp/164"): "evalplus accepts any answer of are_equivalent: its reference is wrong",
    ("mbpp", "Mbpp/295"): "evalplus also accepts 0 from sum_div, which is wrong",
    ("mbpp", "Mbpp/558"): "evalplus also accepts a second reading of digit_distance_nums",
    ("mbpp", "Mbpp/581"): "evalplus also accepts a second reading of surface_Area",
}
"""(dataset, task): why the two verdicts may differ there. Everything else must be equal."""


def programs(row, count):
    """The reference, mutants of it, and attempts of poorer quality."""
    reference = row["prompt"] + row["canonical_solution"]
    name = row["entry_point"]
    lines = reference.rstrip().splitlines()
    rng = random.Random(row["task_id"])
    poor = [
        f"def {name}(*args):\n    return None\n",
        f"def {name}(*args):\n    return args[0]\n",
        f"def {name}(*args):\n    return []\n",
        f"def {name}(*args):\n    return 0\n",
        f"def {name}(*args):\n    return True\n",
        f"import math\n\nclass {name}:\n    pass\n",
        "\n".join(lines[:-1]),
        reference.replace(f"def {name}", f"def {name}_", 1) if row["canonical_solution"].count(name) == 0 else "print(",
    ]
    return [reference, *mutants(reference, count, row["task_id"]), rng.choice(poor)]


def write_samples(rows, path, count):
    samples = [{"task_id": row["task_id"], "solution": code} for row in rows for code in programs(row, count)]
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return samples


def theirs(dataset, data, samples, folder):
    """Whether evalplus says that each sample passes base and extra tests."""
    environment = {**os.environ, SETS[dataset][2]: str(data), "XDG_CACHE_HOME": str(folder / "cache")}
    out = folder / "theirs.jsonl"
    script = Path(__file__).with_name("evalplus_verdicts.py")
    subprocess.run([PYTHON, script, dataset, samples, out, str(WALL_LIMIT_S)], env=environment, check=True)
    rows = map(json.loads, out.read_text().splitlines())
    return {(row["task_id"], row["number"]): row["right"] for row in rows}


def ours(dataset, data, samples, folder, *, even):
    """Rows by problem and number. `even`: there are as many samples of each problem; else some are said to be missing."""
    out = folder / "out"
    words = [f"benchmark={SETS[dataset][0]}", f"data={data}", f"samples={samples}", f"reward_timeout={CPU_LIMIT_S}"]
    assert main(["eval", *words, f"out={out}"]) == (0 if even else 1)
    missing = json.loads((out / "results.json").read_text())["missing"]
    assert missing.keys() == (set() if even else {"not_in_file"})
    rows = map(json.loads, (out / "verdicts.jsonl").read_text().splitlines())
    return {(row["problem_id"], row["sample"]): row for row in rows}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not PYTHON, reason="CODE_RL_EVALPLUS names no Python with evalplus")
@pytest.mark.parametrize(("dataset", "part"), [(name, part) for name, parts in PARTS.items() for part in range(parts)])
def test_verdicts_equal_those_of_evalplus(dataset, part, tmp_path):
    lines = gzip.decompress(data_file(SETS[dataset][1]).read_bytes()).decode().splitlines()[part :: PARTS[dataset]]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(line + "\n" for line in lines))
    rows = [json.loads(line) for line in lines]
    samples = write_samples(rows, tmp_path / "samples.jsonl", MUTANTS[dataset])
    expected = theirs(dataset, data, tmp_path / "samples.jsonl", tmp_path)
    even = len(set(Counter(sample["task_id"] for sample in samples).values())) == 1
    found = ours(dataset, data, tmp_path / "samples.jsonl", tmp_path, even=even)
    assert expected.keys() == found.keys()
    different = [key for key in expected if expected[key] != (found[key]["verdict"] == "passed")]
    texts: dict[str, list[str]] = {}
    for sample in samples:
        texts.setdefault(sample["task_id"], []).append(sample["solution"])
    unexplained = [
        (task, number, found[task, number]["verdict"], found[task, number]["failure"], texts[task][number])
        for task, number in different
        if (dataset, task) not in DIFFERENCES
    ]
    print(f"{dataset}, part {part}: {len(found)} samples, {sum(expected.values())} right by evalplus")
    print(f"differ: {different}; {Counter(row['verdict'] for row in found.values())}")
    for row in unexplained:
        print(row)
    assert not unexplained
    assert 0.9 * len(rows) <= sum(expected.values()) <= 0.9 * len(expected)
