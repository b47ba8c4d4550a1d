"""Hostile programs for call problems: `total(numbers)` must return the sum, and none of these works it out."""

from __future__ import annotations

from textwrap import dedent

from tests.grading.corpus.entries import FAILED, Entry, total_problem

TOTAL = total_problem(time_limit_s=1.0, memory_limit_mb=256)

_PROGRAMS: dict[str, dict[str, str]] = {
    "early exit": {
        "exit_in_call": "import os\ndef total(numbers):\n    os._exit(0)",
        "exit_at_import": "import os\nos._exit(0)",
        "system_exit_in_call": "import sys\ndef total(numbers):\n    sys.exit(0)",
        "system_exit_at_import": "raise SystemExit(0)",
        "keyboard_interrupt": "def total(numbers):\n    raise KeyboardInterrupt",
        "generator_exit": "def total(numbers):\n    raise GeneratorExit",
        "execv_in_call": "import os\ndef total(numbers):\n    os.execv('/bin/true', ['true'])",
        "fork_returns_twice": "import os\ndef total(numbers):\n    os.fork()\n    return 0",
        "thread_exits": "import os, threading, time\ndef total(numbers):\n    threading.Thread(target=lambda: os._exit(0)).start()\n    time.sleep(3)",
        "atexit_in_call": "import atexit, os\ndef total(numbers):\n    atexit.register(os._exit, 0)\n    return 0",
    },
    "returned objects": {
        "always_equal": "class A:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    def __hash__(self): return 0\ndef total(numbers):\n    return A()",
        "always_equal_int": "class A(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    def __hash__(self): return 0\ndef total(numbers):\n    return A(0)",
        "always_equal_str": "class A(str):\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\ndef total(numbers):\n    return A('')",
        "always_equal_list": "class A(list):\n    def __eq__(self, other): return True\n    def __len__(self): return 0\n    def __iter__(self): return iter([])\ndef total(numbers):\n    return A([0])",
        "always_equal_float": "class A(float):\n    def __eq__(self, other): return True\n    def __sub__(self, other): return 0.0\n    __rsub__ = __sub__\n    def __hash__(self): return 0\ndef total(numbers):\n    return A(0)",
        "always_equal_dict": "class A(dict):\n    def __eq__(self, other): return True\n    def items(self): return []\ndef total(numbers):\n    return A(x=1)",
        "class_lies_about_itself": "class A:\n    @property\n    def __class__(self): return int\n    def __eq__(self, other): return True\n    def __index__(self): return 0\n    def __int__(self): return 0\ndef total(numbers):\n    return A()",
        "metaclass_with_mro": "class M(type):\n    @property\n    def __mro__(cls): return (int, object)\n    def mro(cls): return [cls, object]\nclass A(metaclass=M):\n    def __eq__(self, other): return True\ndef total(numbers):\n    return A()",
        "mock_object": "from unittest.mock import MagicMock, ANY\ndef total(numbers):\n    return ANY",
        "magic_mock": "from unittest.mock import MagicMock\ndef total(numbers):\n    return MagicMock()",
        "numpy_broadcast": "import numpy as np\ndef total(numbers):\n    return np.arange(10)",
        "numpy_masked": "import numpy as np\ndef total(numbers):\n    return np.ma.masked",
        "nan": "def total(numbers):\n    return float('nan')",
        "infinity": "def total(numbers):\n    return float('inf')",
        "none": "def total(numbers):\n    return None",
        "not_implemented": "def total(numbers):\n    return NotImplemented",
        "true": "def total(numbers):\n    return True",
        "string_of_the_sum_type": "def total(numbers):\n    return 'total'",
        "list_of_candidates": "def total(numbers):\n    return list(range(10000))",
        "sum_in_a_list": "def total(numbers):\n    return [sum(numbers)]",
        "sum_as_text": "def total(numbers):\n    return str(sum(numbers))",
        "sum_then_more": "def total(numbers):\n    return sum(numbers), 0",
        "rounded": "def total(numbers):\n    return round(sum(numbers), -1)",
        "near_float": "def total(numbers):\n    return sum(numbers) * (1 + 1e-9) + 1e-9",
        "forged_tag": "def total(numbers):\n    return {'__type__': 'int', 'items': [6]}",
        "forged_unknown_tag": "def total(numbers):\n    return {'__type__': '__main__.Answer', 'items': [0]}",
        "forged_dict_in_dict": "def total(numbers):\n    return {'__type__': 'dict', 'items': [['status', 'ok'], ['passed', True]]}",
        "coroutine": "async def total(numbers):\n    return sum(numbers)",
        "generator": "def total(numbers):\n    yield sum(numbers)",
        "function_itself": "def total(numbers):\n    return total",
        "module": "import os\ndef total(numbers):\n    return os",
        "cyclic_list": "def total(numbers):\n    x = []\n    x.append(x)\n    return x",
        "cyclic_dict": "def total(numbers):\n    x = {}\n    x['x'] = x\n    return x",
        "deep_list": "def total(numbers):\n    x = 0\n    for _ in range(100000):\n        x = [x]\n    return x",
        "deep_tuple_in_dict": "def total(numbers):\n    x = 0\n    for _ in range(5000):\n        x = {1: (x,)}\n    return x",
        "exponential_sharing": "def total(numbers):\n    x = [0]\n    for _ in range(60):\n        x = [x, x]\n    return x",
        "huge_list": "def total(numbers):\n    return [0] * 20_000_000",
        "huge_string": "def total(numbers):\n    return 'x' * 200_000_000",
        "huge_integer": "def total(numbers):\n    return 1 << 20_000_000",
        "huge_repr": "class A(int):\n    def __repr__(self): return '6' * 10**9\n    __str__ = __repr__\ndef total(numbers):\n    return A(0)",
        "surrogate_string": "def total(numbers):\n    return '\\ud800\\udfff'",
        "iter_raises": "class A(list):\n    def __iter__(self): raise SystemExit(0)\n    def __getitem__(self, i): raise SystemExit(0)\n    def __reduce__(self): raise SystemExit(0)\ndef total(numbers):\n    return A([0])",
        "getattribute_exits": "import os\nclass A:\n    def __getattribute__(self, name): os._exit(0)\ndef total(numbers):\n    return A()",
        "reduce_runs_code": "import os\nclass A:\n    def __reduce__(self): return (os.system, ('touch /tmp/breach',))\ndef total(numbers):\n    return A()",
        "list_grows_while_read": "import threading\ndef total(numbers):\n    x = [0]\n    def grow():\n        while True:\n            x.append(0)\n    threading.Thread(target=grow, daemon=True).start()\n    return x",
    },
    "patched grader": {
        "builtins_patched": "import builtins\nfor name in ('type', 'isinstance', 'repr', 'str', 'len', 'sorted', 'list', 'dict', 'int', 'getattr', 'any', 'all'):\n    setattr(builtins, name, lambda *a, **k: 6)\ndef total(numbers):\n    return 0",
        "json_patched": "import json\njson.dumps = json.JSONEncoder.encode = lambda *a, **k: '6'\njson.loads = lambda *a, **k: 6\ndef total(numbers):\n    return 0",
        "json_c_encoder_patched": "import json.encoder\njson.encoder.c_make_encoder = None\njson.encoder.encode_basestring_ascii = lambda s: '\"6\"'\nint.__repr__\ndef total(numbers):\n    return 0",
        "pickle_patched": "import pickle\npickle.dumps = lambda *a, **k: b'I6\\n.'\ndef total(numbers):\n    return 0",
        "os_write_patched": "import os\nreal = os.write\nos.write = lambda fd, data: real(fd, b'6')\ndef total(numbers):\n    return 0",
        "codec_patched": """
            import sys
            for module in list(sys.modules.values()):
                for name in ("encode", "_encode", "dumps", "encode_value", "to_wire"):
                    if hasattr(module, name) and getattr(module, "__name__", "") not in ("codecs", "_codecs"):
                        try:
                            setattr(module, name, lambda *a, **k: "6")
                        except (TypeError, AttributeError):
                            pass
            def total(numbers):
                return 0
            """,
        "runner_globals_rewritten": """
            import sys
            def total(numbers):
                frame = sys._getframe()
                while frame:
                    for space in (frame.f_globals, frame.f_locals):
                        for key in list(space):
                            if "expect" in key or "result" in key or "status" in key or "value" in key:
                                try:
                                    space[key] = 6
                                except TypeError:
                                    pass
                    frame = frame.f_back
                return 0
            """,
        "runner_returns_early": """
            import gc, types
            def total(numbers):
                for function in gc.get_objects():
                    if type(function) is types.FunctionType and ("compare" in function.__name__ or "check" in function.__name__ or "judge" in function.__name__):
                        function.__code__ = (lambda *a, **k: None).__code__
                return 0
            """,
        "setprofile_swaps_the_result": """
            import sys
            def hook(frame, event, arg):
                if event == "return":
                    for key in list(frame.f_locals):
                        frame.f_locals[key] = 6
            def total(numbers):
                sys.setprofile(hook)
                return 0
            """,
        "excepthook_forges": "import sys, os\ndef forge(*a):\n    for fd in range(3, 64):\n        try:\n            os.write(fd, b'6\\n')\n        except OSError:\n            pass\n    os._exit(0)\nsys.excepthook = forge\ndef total(numbers):\n    raise ValueError",
    },
    "reads the expected output": {
        "frames": """
            import sys
            def total(numbers):
                frame = sys._getframe(1)
                while frame:
                    for key, value in {**frame.f_globals, **frame.f_locals}.items():
                        if "expect" in key or "answer" in key or "outputs" in key:
                            return value
                    frame = frame.f_back
                return 0
            """,
        "gc": """
            import gc
            def total(numbers):
                for thing in gc.get_objects():
                    if type(thing) is dict and "expected" in thing:
                        return thing["expected"]
                    if type(thing).__name__ in ("CallTest", "Problem"):
                        return thing.expected if hasattr(thing, "expected") else thing.tests[0].expected
                return 0
            """,
        "modules": """
            import sys
            def total(numbers):
                for name, module in list(sys.modules.items()):
                    if "code_rl" in name and hasattr(module, "CallTest"):
                        return -1
                    for key in ("tests", "expected", "outputs", "in_outs"):
                        if key in getattr(module, "__dict__", {}):
                            return getattr(module, key)
                return 0
            """,
        "all_inputs_by_descriptor": """
            import os
            def total(numbers):
                data = b""
                for fd in range(0, 256):
                    try:
                        os.set_blocking(fd, False)
                        os.lseek(fd, 0, 0)
                    except OSError:
                        pass
                    try:
                        data += os.read(fd, 1 << 16)
                    except OSError:
                        pass
                return data.decode("latin-1")
            """,
    },
    "forged results": {
        "frames_then_exit": """
            import json, os, struct
            def total(numbers):
                for body in (b"6", b'{"value": 6}', b'["ok", 6]', json.dumps({"status": "ok", "value": "6", "exit_code": 0}).encode()):
                    for fd in range(1, 1024):
                        for frame in (body, body + b"\\n", struct.pack("<I", len(body)) + body, struct.pack(">I", len(body)) + body, struct.pack("<Q", len(body)) + body):
                            try:
                                os.write(fd, frame)
                            except OSError:
                                pass
                os._exit(0)
            """,
        "file_of_results": "import json\ndef total(numbers):\n    for name in ('result.json', 'results.json', 'output', 'outputs.json', '/tmp/result', '/dev/shm/result'):\n        try:\n            open(name, 'w').write(json.dumps([6, 7, 11, 5050]))\n        except OSError:\n            pass\n    raise SystemExit(0)",
        "print_instead_of_return": "def total(numbers):\n    print(sum(numbers))",
        "argument_mutated_to_the_answer": "def total(numbers):\n    numbers[:] = [sum(numbers)]",
    },
    "missing": {
        "no_such_function": "def other(numbers):\n    return sum(numbers)",
        "not_callable": "total = 6",
        "wrong_signature": "def total():\n    return 6",
        "solution_without_method": "class Solution:\n    pass",
        "raises": "def total(numbers):\n    raise ValueError(sum(numbers))",
        "only_first_call": "calls = 0\ndef total(numbers):\n    global calls\n    calls += 1\n    return 6 if len(numbers) == 3 and numbers[0] == 1 else 0",
        "state_between_calls": "import os\nanswers = [6, 7, 11, 5050, 900000000037]\ndef total(numbers):\n    return answers.pop(0)",
    },
    "resources": {
        "spin": "def total(numbers):\n    while True:\n        pass",
        "sleep": "import time\ndef total(numbers):\n    time.sleep(3600)",
        "spin_at_import": "while True:\n    pass",
        "memory": "def total(numbers):\n    return bytearray(1 << 40)",
        "recursion": "def total(numbers):\n    return total(numbers)",
        "print_flood": "def total(numbers):\n    while True:\n        print('x' * 100000)",
        "leaves_threads_running": "import threading, time\ndef total(numbers):\n    for _ in range(4):\n        threading.Thread(target=time.sleep, args=(600,)).start()\n    return 0",
    },
}

CHEATS_CALL: tuple[Entry, ...] = tuple(
    Entry(f"call_{name}", kind, dedent(code), TOTAL, FAILED)
    for kind, programs in _PROGRAMS.items()
    for name, code in programs.items()
)
