"""LiveCodeBench's own testing utility beside our judge, on the same programs, honest and not: a table of each difference with its reason.

    python benchmarks/lcb_harness.py official=…/lcb_runner/evaluation/testing_util.py [programs=2100]

Problems of the built-in family, each with every form of program below. The utility runs as its evaluation runs it, one process a program, without
any sandbox: the forms are harmless. A form passes when all its programs do. A difference without a reason here is an error: exit code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import multiprocessing
import os
import sys
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import chz

from code_rl.cli.main import run_script
from code_rl.data.builtin import SPLITS, test_split
from code_rl.data.sources.livecodebench import LCB_PRELUDE
from code_rl.evaluation.runner import judge_official
from code_rl.grading.judging import judge_async
from code_rl.grading.problem import CallTest, Problem, StdinTest
from code_rl.grading.sandbox.local.pool import EmbeddedSandbox
from code_rl.util.errors import ConfigError

TIMEOUT_S = 2
STDIN_MOCK = "it gives programs a mock of stdin that cannot do this; here they are programs on a real stdin"
STDOUT_MOCK = "it collects what is printed in a StringIO; here stdout is a real file"
ONE_FUNCTION = "it moves the program into the body of a function; here it is a module"
OWN_PROCESS = "it runs the program in the harness's own process, whose end or state the program decides"
EXPECTED_NEAR = "the expected output lies in the program's own process there; here it never enters the sandbox"
EXIT_CODE = "a program that ends with an exit code other than 0 has failed; lcb-official compares what it printed"
EXIT_BEHIND = "as CPython does, what a program registered to run at its end runs"
ONE_CALL = (
    "it makes all calls in one process, on one object, and lcb-official follows; under lcb each is a process of its own"
)
RULE = "our rule: lcb-official follows the utility here, lcb does not"

STDIN_FORMS = {
    "as it is": "{solution}",
    "names of the import list": "assert math.gcd(4, 6) == gcd(4, 6) == 2\nrow: List[int] = list(deque([1]))\nCounter(row), defaultdict(int), inf\n{solution}",
    "its own imports": "import sys, math\nfrom collections import Counter, deque\n{solution}",
    "star import": "from math import *\n{solution}",
    "function and call": "def main():\n{indented}\nmain()",
    "main guard": "def main():\n{indented}\nif __name__ == '__main__':\n    main()",
    "main guard not last": "def main():\n{indented}\nif __name__ == '__main__':\n    main()\nfinished = True",
    "global": "count = 0\ndef bump():\n    global count\n    count += 1\nbump()\n{solution}",
    "future import": "from __future__ import annotations\n{solution}",
    "triple-quoted text": "text = '''a\n  b'''\nassert text.split('\\n')[1] == '  b'\n{solution}",
    "recursion of 20,000": "def depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\nassert depth(20000) == 20000\n{solution}",
    "4,400 digits": "assert len(str(10 ** 4400)) == 4401\n{solution}",
    "thread": "import threading\ndef main():\n{indented}\nthread = threading.Thread(target=main)\nthread.start()\nthread.join()",
    "open(0)": "lines = iter(open(0).read().split('\\n'))\ninput = lambda: next(lines)\n{solution}",
    "sys.stdin.readline": "import sys\ninput = lambda: sys.stdin.readline().rstrip('\\n')\n{solution}",
    "sys.stdin.read": "import sys\nlines = iter(sys.stdin.read().split('\\n'))\ninput = lambda: next(lines)\n{solution}",
    "for line in sys.stdin": "import sys\nlines = iter([line.rstrip('\\n') for line in sys.stdin])\ninput = lambda: next(lines)\n{solution}",
    "sys.stdin.buffer.read": "import sys\nlines = iter(sys.stdin.buffer.read().decode().split('\\n'))\ninput = lambda: next(lines)\n{solution}",
    "sys.stdin.buffer.readline": "import sys\ninput = lambda: sys.stdin.buffer.readline().decode().rstrip('\\n')\n{solution}",
    "os.read(0)": "import os\nlines = iter(os.read(0, 1 << 20).decode().split('\\n'))\ninput = lambda: next(lines)\n{solution}",
    "sys.stdout.write": "import sys\nshow = lambda value: sys.stdout.write(str(value) + '\\n')\n{shown}",
    "sys.stdout.buffer": "import sys\nshow = lambda value: sys.stdout.buffer.write((str(value) + '\\n').encode())\n{shown}",
    "os.write(1)": "import os\nshow = lambda value: os.write(1, (str(value) + '\\n').encode())\n{shown}",
    "sys.exit() at the end": "import sys\n{solution}\nsys.exit()",
    "exit() at the end": "{solution}\nexit()",
    "quit() at the end": "{solution}\nquit()",
    "exit code 1 at the end": "import sys\n{solution}\nsys.exit(1)",
    "SystemExit with a text": "{solution}\nraise SystemExit('done')",
    "os._exit(0) at the end": "import os, sys\n{solution}\nsys.stdout.flush()\nos._exit(0)",
    "white space around": "{solution}\nprint(' ')\nprint()",
    "decimal point": "def show(value):\n    print(str(value) + ('.0' if isinstance(value, int) else ''))\n{shown}",
    "exponent": "def show(value):\n    print(str(value) + ('e0' if isinstance(value, int) else ''))\n{shown}",
    "error after the answer": "{solution}\n1 / 0",
    "atexit": "import atexit\natexit.register(lambda: print('finished'))\n{solution}",
    "return at the top level": "{solution}\nreturn",
    "stdout of the import list": "show = lambda value: stdout.write(str(value) + '\\n')\n{shown}",
    "a class called Solution": "class Solution:\n    pass\n{solution}",
    "del of a builtin's name": "abs = None\ndel abs\nabs(1)\n{solution}",
    "byte-order mark": "\ufeff{solution}",
    "nothing": "pass",
    "zero": "print(0)",
    "another answer": "def show(value):\n    print(value, 1)\n{shown}",
    "a line more": "{solution}\nprint('finished')",
    "early exit": "import sys\nsys.exit(0)",
    "early os._exit": "import os\nos._exit(0)",
    "endless": "while True:\n    pass",
    "does not compile": "print(",
    "reads the expected output": "import sys\nframe = sys._getframe()\nwhile frame and 'gt_out' not in frame.f_locals:\n    frame = frame.f_back\nprint(frame.f_locals['gt_out'])",
    "takes the comparison away": "import sys\nframe = sys._getframe()\nwhile frame and 'get_stripped_lines' not in frame.f_globals:\n    frame = frame.f_back\n"
    "if frame:\n    frame.f_globals['get_stripped_lines'] = lambda text: []",
}  # fmt: skip
CALL_FORMS = {
    "as it is": "{solution}",
    "names of the import list": "seen: List[int] = list(deque([gcd(4, 6), math.inf]))\n{solution}",
    "tuple for list": "{solution}\nplain = Solution.{name}\nSolution.{name} = lambda self, value: tuple(found) if isinstance(found := plain(self, value), list) else found",
    "float for int": "{solution}\nplain = Solution.{name}\nSolution.{name} = lambda self, value: float(found) if isinstance(found := plain(self, value), int) else found",
    "numpy integer": "import numpy\n{solution}\nplain = Solution.{name}\nSolution.{name} = lambda self, value: numpy.int64(found) if isinstance(found := plain(self, value), int) else found",
    "deque for list": "{solution}\nplain = Solution.{name}\nSolution.{name} = lambda self, value: deque(found) if isinstance(found := plain(self, value), list) else found",
    "complex for int": "{solution}\nplain = Solution.{name}\nSolution.{name} = lambda self, value: complex(found) if isinstance(found := plain(self, value), int) else found",
    "a list of the module": "{solution}\nplain, seen = Solution.{name}, []\nSolution.{name} = lambda self, value: seen.append(1) or (plain(self, value) if len(seen) == 1 else None)",
    "an attribute of the object": "{solution}\nplain = Solution.{name}\ndef once(self, value):\n    self.calls = getattr(self, 'calls', 0) + 1\n    return plain(self, value) if self.calls == 1 else None\nSolution.{name} = once",
    "threads that each call leaves behind": "import threading\n{solution}\nplain = Solution.{name}\nSolution.{name} = lambda self, value: [threading.Thread(target=threading.Event().wait).start() for _ in range(60)] and plain(self, value)",
    "files that each call leaves open": "{solution}\nplain, held = Solution.{name}, []\nSolution.{name} = lambda self, value: held.extend(open('/dev/null') for _ in range(200)) or plain(self, value)",
    "prints as well": "{solution}\nprint('started')",
    "future import": "from __future__ import annotations\n{solution}",
    "function beside": "{solution}\ndef {name}(value):\n    return Solution().{name}(value)",
    "function only": "{solution}\nAnswer = Solution\ndel Solution\ndef {name}(value):\n    return Answer().{name}(value)",
    "changes its argument": "{solution}\nplain = Solution.{name}\ndef changing(self, value):\n    found = plain(self, value)\n    isinstance(value, list) and value.clear()\n    return found\nSolution.{name} = changing",
    "None": "class Solution:\n    def {name}(self, value):\n        return None",
    "always equal": "class Any_:\n    def __eq__(self, other):\n        return True\nclass Solution:\n    def {name}(self, value):\n        return Any_()",
    "SystemExit in the call": "class Solution:\n    def {name}(self, value):\n        raise SystemExit(0)",
    "os._exit in the call": "import os\nclass Solution:\n    def {name}(self, value):\n        os._exit(0)",
    "reads the expected output": "import sys\nclass Solution:\n    def {name}(self, value):\n        frame = sys._getframe()\n        while frame and 'gt_out' not in frame.f_locals:\n            frame = frame.f_back\n        return frame.f_locals['gt_out']",
}  # fmt: skip
REASONS = {
    "stdin: main guard not last": ONE_FUNCTION, "stdin: global": ONE_FUNCTION, "stdin: future import": ONE_FUNCTION,
    "stdin: return at the top level": ONE_FUNCTION, "stdin: del of a builtin's name": ONE_FUNCTION,
    "stdin: a class called Solution": "it takes a program with the text `class Solution` for one that has it called",
    "stdin: byte-order mark": "it puts its imports and the program into one text", "stdin: stdout of the import list": STDOUT_MOCK,
    "call: a list of the module": ONE_CALL, "call: an attribute of the object": ONE_CALL, "call: complex for int": "a complex number is no value of a test here",
    "stdin: 4,400 digits": "CPython's bound on printed digits is lifted here",
    "stdin: open(0)": STDIN_MOCK, "stdin: for line in sys.stdin": STDIN_MOCK,
    "stdin: sys.stdin.buffer.readline": STDIN_MOCK, "stdin: os.read(0)": STDIN_MOCK,
    "stdin: sys.stdout.buffer": STDOUT_MOCK, "stdin: os.write(1)": STDOUT_MOCK,
    "stdin: quit() at the end": "it takes the name quit away", "stdin: exit code 1 at the end": EXIT_CODE, "stdin: SystemExit with a text": EXIT_CODE,
    "stdin: os._exit(0) at the end": OWN_PROCESS, "stdin: atexit": EXIT_BEHIND,  "stdin: exponent": RULE,
    "stdin: reads the expected output": EXPECTED_NEAR, "stdin: takes the comparison away": EXPECTED_NEAR,
    "call: future import": "it puts its imports and the program into one text", "call: always equal": "a returned object is read as plain data by known types, and compared outside",
    "call: deque for list": "a deque is right where a list is expected under lcb; lcb-official follows the utility in tuples only",
    "call: function only": "it looks for a class wherever the text `class Solution` stands", "call: reads the expected output": EXPECTED_NEAR,
}  # fmt: skip


@chz.chz
class Settings:
    """Settings of the comparison."""

    official: str = chz.field(
        doc="LiveCodeBench's lcb_runner/evaluation/testing_util.py, from a checkout of its repository."
    )
    programs: int = chz.field(default=2100, doc="How many programs, about.")


@dataclass(frozen=True, slots=True)
class Program:
    """One form of program for one problem."""

    form: str
    problem: Problem
    code: str


def write_programs(count: int) -> list[Program]:
    """About `count` programs: problems of both kinds in turn, each in all forms of its kind."""
    problems = [problem for split in SPLITS for problem in test_split(split)]
    printing, called = ([one for one in problems if bool(one.fn_name) is calls] for calls in (False, True))
    each = -(-count // (len(STDIN_FORMS) + len(CALL_FORMS)))
    found = []
    for kind, forms, chosen in (("stdin", STDIN_FORMS, printing[:each]), ("call", CALL_FORMS, called[:each])):
        for problem in chosen:
            problem = replace(problem, tests=problem.tests[:4], meta={**problem.meta, "preamble": LCB_PRELUDE})
            solution = problem.solutions[0]
            for form, text in forms.items():
                shown = solution.replace("print(", "show(")
                filled = {
                    "solution": solution,
                    "shown": shown,
                    "indented": textwrap.indent(solution, "    "),
                    "name": problem.fn_name or "",
                }
                for name, value in filled.items():
                    text = text.replace("{" + name + "}", value)
                found.append(Program(f"{kind}: {form}", problem, text))
    return found


def load_official(path: Path) -> ModuleType:
    """The utility as a module of its own name, under which programs might look for it."""
    spec = importlib.util.spec_from_file_location("testing_util", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(
            f"official={path}: there is no such Python file; it is lcb_runner/evaluation/testing_util.py of LiveCodeBench"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def official_sample(problem: Problem) -> dict[str, str]:
    """The tests as the utility takes them."""
    given, wanted = [], []
    for test in problem.tests:
        if isinstance(test, StdinTest):
            given.append(test.input)
            wanted.append(test.expected)
        elif isinstance(test, CallTest):
            given.append("\n".join(json.dumps(argument) for argument in test.args))
            wanted.append(json.dumps(test.expected))
    return {"input_output": json.dumps({"inputs": given, "outputs": wanted, "fn_name": problem.fn_name})}


def officially(module: ModuleType, program: Program) -> bool:
    """Whether the utility, in a process of its own, passes the program."""
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)

    def work() -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        results, _ = module.run_test(official_sample(program.problem), test=program.code, timeout=TIMEOUT_S)
        there.send([bool(result > 0) for result in results])

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    there.close()
    passed: list[bool] = []
    with contextlib.suppress(EOFError):
        if here.poll((TIMEOUT_S + 1) * len(program.problem.tests) + 5):
            passed = here.recv()
    process.kill()
    process.join()
    return bool(passed) and all(passed)


async def ours(programs: Sequence[Program]) -> list[tuple[bool, bool]]:
    """For each program whether it passes under the problem's own rule, and under lcb-official."""
    async with EmbeddedSandbox() as sandbox:
        places = asyncio.Semaphore(8)

        async def one(program: Program) -> tuple[bool, bool]:
            async with places:
                own = await judge_async(program.problem, program.code, sandbox, cpu_limit_s=TIMEOUT_S)
                official = await judge_official(program.problem, program.code, sandbox, cpu_limit_s=TIMEOUT_S)
            return own.correct, official.correct

        return await asyncio.gather(*map(one, programs))


def main(settings: Settings) -> int:
    """Judge everything twice and print the differences."""
    module = load_official(Path(settings.official).expanduser())
    programs = write_programs(settings.programs)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        theirs = list(threads.map(lambda program: officially(module, program), programs))
    mine = asyncio.run(ours(programs))
    rows: dict[str, list[tuple[bool, bool, bool]]] = defaultdict(list)
    for program, official, (own, like_official) in zip(programs, theirs, mine, strict=True):
        rows[program.form].append((official, own, like_official))
    differ = {form: found for form, found in rows.items() if any(len(set(one)) > 1 for one in found)}
    print(
        f"{len(programs)} programs in {len(rows)} forms; {len(rows) - len(differ)} forms are judged alike by all three\n"
    )
    print("| form | programs | the utility passes | lcb | lcb-official | why |\n|---|---|---|---|---|---|")
    for form, found in differ.items():
        passed = (str(sum(one[place] for one in found)) for place in range(3))
        print(f"| {form} | {len(found)} | {' | '.join(passed)} | {REASONS.get(form, 'UNEXPLAINED')} |")
    unexplained = differ.keys() - REASONS.keys()
    unneeded = REASONS.keys() - differ.keys()
    if unneeded:
        print(f"\nreasons for forms without a difference: {', '.join(sorted(unneeded))}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    run_script(Settings, main, __doc__ or "")
