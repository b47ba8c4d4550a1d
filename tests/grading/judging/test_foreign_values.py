"""Values of other types than Python's plain ones: equal ones are right, and none passes for another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from code_rl.grading import CallTest, Compare, Problem, judge_async
from tests.boxes import shared_box
from tests.grading.corpus.programs import ENTRIES

NUMPY = "import numpy as np\n"


def returning(expected: object, rule: str = "lcb") -> Problem:
    return Problem("f", "", (CallTest((), expected),), "", "f", compare=Compare(rule))


CORPUS = {entry.name: (entry.problem, entry.code) for entry in ENTRIES if entry.name.startswith("returns_")}
"""Right programs, which are judged with the rest of the corpus."""
OTHERS = {
    "scalar_array": (returning(3), NUMPY + "def f(): return np.array(3)"),
    "matrix": (returning([[0, 1], [2, 3]]), NUMPY + "def f(): return np.arange(4).reshape(2, 2)"),
    "dict_keys_for_a_list": (returning(["a", "b"]), "def f(): return dict.fromkeys('ab').keys()"),
    "zip": (returning([(1, 2)]), "def f(): return zip([1], [2])"),
    "array": (returning([1, 2]), "from array import array\ndef f(): return array('i', [1, 2])"),
}
EQUAL = "    __eq__ = lambda *a: True\n    __hash__ = lambda s: 5\n    __int__ = __index__ = lambda s: 5\n    __float__ = lambda s: 5.0\n"
FORGED = {
    "lying_int64": NUMPY + "class X(np.int64):\n" + EQUAL + "def f(): return X(9)",
    "lying_float32": NUMPY + "class X(np.float32):\n" + EQUAL + "    item = tolist = lambda s: 5\ndef f(): return X(9)",
    "lying_array": NUMPY + "class X(np.ndarray):\n    tolist = item = lambda s: 5\ndef f(): return np.array(9).view(X)",
    "lying_object_array": NUMPY + "class X:\n" + EQUAL + "def f(): return np.array(X(), dtype=object)",
    "array_with_wrong_items": NUMPY + "np.ndarray = None\nnp.int64 = int\ndef f(): return np.arange(3)",
    "tolist_replaced": NUMPY
    + "try:\n    np.ndarray.tolist = lambda s: 5\nexcept TypeError: pass\ndef f(): return np.array(9)",
    "class_named_int64": "class int64:\n" + EQUAL + "    __module__ = 'numpy'\ndef f(): return int64()",
    "fake_numpy": "import sys, types\nm = sys.modules['numpy'] = types.ModuleType('numpy')\nclass int64:\n"
    + EQUAL
    + "    __module__ = 'numpy'\nm.int64 = int64\ndef f(): return int64()",
    "fake_abc": "class integer:\n    __module__ = 'numpy'\n" + EQUAL + "class X(integer): pass\ndef f(): return X()",
    "metaclass_mro": "class M(type):\n    __mro__ = property(lambda c: (int, object))\n    __name__ = 'int'\nclass X(metaclass=M):\n"
    + EQUAL
    + "def f(): return X()",
    "lying_keys": "class D(dict):\n    keys = lambda s: K()\nclass K:\n    __iter__ = lambda s: iter([5])\n"
    + EQUAL
    + "def f(): return D().keys()",
    "lying_int_subclass": "class X(int):\n" + EQUAL + "def f(): return X(9)",
    "lying_range": "class range:\n    __iter__ = lambda s: iter([5])\n" + EQUAL + "def f(): return range()",
    "forged_json": 'import os\ndef f():\n    v = b\'{"__type__":"json","items":["5"]}\'\n    os.write(3, len(v).to_bytes(8, \'little\') + v)\n    os._exit(0)',
    "forged_raise": "def f(): return {'__type__': 'raised', 'items': ['ValueError']}",
    "endless": "import itertools\ndef f(): return itertools.count()",
    "all_brackets": "import os\ndef f():\n    v = b'[' + b'[],' * 5000000 + b'5]'\n    os.write(3, len(v).to_bytes(8, 'little') + v)\n    os._exit(0)",
}


def verdicts(programs: Mapping[str, tuple[Problem, str]]):
    """Of each program; the endless one, which no limit lets end, gets a short one."""

    async def go():
        runs = {
            name: judge_async(problem, code, shared_box(concurrency=2), cpu_limit_s=1 if name == "endless" else 3)
            for name, (problem, code) in programs.items()
        }
        return dict(zip(runs, await asyncio.gather(*runs.values()), strict=True))

    return asyncio.run(go())


def test_values_that_are_equal_are_right():
    pytest.importorskip("numpy")
    found = verdicts(OTHERS)
    assert {name: (v.kind.value, v.failure) for name, v in found.items() if not v.correct} == {}


def test_values_that_are_not_equal_are_wrong():
    def other(problem):
        return replace(problem, tests=tuple(replace(test, expected=[test.expected, 77]) for test in problem.tests))

    found = verdicts({name: (other(problem), code) for name, (problem, code) in (CORPUS | OTHERS).items()})
    assert [name for name, verdict in found.items() if verdict.correct] == []


@pytest.mark.long
@pytest.mark.parametrize("expected", [5, [5]])
def test_no_forged_value_passes_and_none_is_excused(expected):
    found = verdicts({name: (returning(expected), code) for name, code in FORGED.items()})
    assert [name for name, verdict in found.items() if verdict.correct or verdict.undecided] == []


@pytest.mark.parametrize("rule", ["python", "lcb-official"])
def test_strict_rules_take_no_range_for_a_list(rule):
    names = [f"returns_{name}_for_list" for name in ("range", "generator", "deque", "dict_values")]
    strict = {name: (replace(CORPUS[name][0], compare=Compare(rule)), CORPUS[name][1]) for name in names}
    assert [name for name, verdict in verdicts(strict).items() if verdict.correct] == []


def test_a_bool_of_numpy_is_a_bool():
    pytest.importorskip("numpy")
    (verdict,) = verdicts({"bool_for_1": (returning(1), NUMPY + "def f(): return np.bool_(True)")}).values()
    assert verdict.correct
