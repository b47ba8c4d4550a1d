"""Values of other types than Python's plain ones: equal ones are right, and none passes for what it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from code_rl.grading.judging import judge_async
from code_rl.grading.problem import CallTest, Compare, Problem
from code_rl.grading.verdict import VerdictKind
from tests.boxes import shared_box

NUMPY = "import numpy as np\n"
HONEST = {
    "int64": (NUMPY + "def f(): return np.int64(5)", 5),
    "uint8_of_a_sum": (NUMPY + "def f(): return np.array([2, 3], dtype=np.uint8).sum()", 5),
    "bool_": (NUMPY + "def f(): return np.array([1, 2]).all()", True),
    "float32": (NUMPY + "def f(): return np.float32(.5)", 0.5),
    "scalar_array": (NUMPY + "def f(): return np.array(3)", 3),
    "matrix": (NUMPY + "def f(): return np.arange(4).reshape(2, 2)", [[0, 1], [2, 3]]),
    "numpy_in_lists": (NUMPY + "def f(): return [np.int64(1), (np.float64(.5), np.str_('a'))]", [1, (0.5, "a")]),
    "numpy_in_dicts": (NUMPY + "def f(): return {np.int64(1): np.array([2])}", {1: [2]}),
    "dict_keys_for_a_set": ("def f(): return {1: 0, 2: 0}.keys()", {1, 2}),
    "dict_items_for_a_set": ("def f(): return {1: 0}.items()", {(1, 0)}),
    "dict_keys_for_a_list": ("def f(): return dict.fromkeys('ab').keys()", ["a", "b"]),
    "dict_values": ("def f(): return {1: 5}.values()", [5]),
    "range": ("def f(): return range(3)", [0, 1, 2]),
    "generator": ("def f():\n    yield 1\n    yield 2", [1, 2]),
    "map": ("def f(): return map(str, [1])", ["1"]),
    "zip": ("def f(): return zip([1], [2])", [(1, 2)]),
    "deque": ("from collections import deque\ndef f(): return deque([1])", [1]),
    "array": ("from array import array\ndef f(): return array('i', [1, 2])", [1, 2]),
    "counter": ("from collections import Counter\ndef f(): return Counter('aab')", {"a": 2, "b": 1}),
    "ordered_dict": ("from collections import OrderedDict\ndef f(): return OrderedDict(b=1, a=2)", {"a": 2, "b": 1}),
    "int_enum": ("from enum import IntEnum\nclass C(IntEnum): A = 3\ndef f(): return C.A", 3),
    "named_tuple": ("from collections import namedtuple\ndef f(): return namedtuple('P', 'x')(1)", (1,)),
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


def verdicts(problems: Mapping[str, tuple[str, object]], rule: str = "lcb"):
    """Of each program; the endless one, which no limit lets end, gets a short one."""

    async def go():
        runs = {
            name: judge_async(
                Problem(name, "", (CallTest((), expected),), "", "f", compare=Compare(rule)),
                code,
                shared_box(concurrency=2),
                cpu_limit_s=1 if name == "endless" else 3,
            )
            for name, (code, expected) in problems.items()
        }
        return dict(zip(runs, await asyncio.gather(*runs.values()), strict=True))

    return asyncio.run(go())


def test_values_that_are_equal_are_right():
    pytest.importorskip("numpy")
    found = verdicts(HONEST)
    assert {name: (v.kind.value, v.failure) for name, v in found.items() if not v.correct} == {}


def test_values_that_are_not_equal_are_wrong():
    others = {name: (code, [expected, 77]) for name, (code, expected) in HONEST.items()}
    assert [name for name, verdict in verdicts(others).items() if verdict.correct] == []


def test_no_forged_value_passes_and_none_is_excused():
    found = verdicts({name: (code, 5) for name, code in FORGED.items()})
    assert [name for name, verdict in found.items() if verdict.correct or verdict.undecided] == []
    lists = verdicts({name: (code, [5]) for name, code in FORGED.items()})
    assert [name for name, verdict in lists.items() if verdict.correct or verdict.undecided] == []


@pytest.mark.parametrize("rule", ["python", "lcb-official"])
def test_strict_rules_take_no_range_for_a_list(rule):
    wanted = {name: HONEST[name] for name in ("range", "generator", "deque", "matrix", "dict_values")}
    assert [name for name, verdict in verdicts(wanted, rule).items() if verdict.correct] == []


def test_a_bool_of_numpy_is_no_number():
    pytest.importorskip("numpy")
    found = verdicts({"numpy_bool_for_1": (NUMPY + "def f(): return np.bool_(True)", 1)})
    assert found["numpy_bool_for_1"].kind is VerdictKind.WRONG_ANSWER
