"""A script ends as `python solution.py` would end: same output, same exit code. The interpreter itself is the oracle."""

import asyncio
import os
import subprocess
import sys
import tempfile

import pytest

from code_rl.grading.sandbox.server import EmbeddedSandbox
from tests.grading.jobs import collect, stdin_job

PROGRAMS = {
    "nothing": "",
    "prints": "print('a'); print('b', end='')",
    "exit_none": "import sys\nsys.exit()",
    "exit_big": "import sys\nsys.exit(259)",
    "exit_text": "import sys\nprint('x')\nsys.exit('reason')",
    "exit_true": "raise SystemExit(True)",
    "exit_builtin": "print(1)\nexit()",
    "os_exit_loses_buffer": "import os\nprint('lost')\nos._exit(0)",
    "raises": "print('before')\nraise ValueError('x')",
    "broken_excepthook": "import sys\nsys.excepthook = lambda *a: 1/0\nraise ValueError",
    "own_excepthook": "import sys\nsys.excepthook = lambda *a: print('hook')\nraise ValueError",
    "atexit_after_error": "import atexit\natexit.register(print, 'bye')\n1/0",
    "thread_joined": "import threading, time\nprint('first')\nthreading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()",
    "daemon_not_joined": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(5), print('never')), daemon=True).start()\nprint('x')",
    "future_import": "from __future__ import annotations\ndef f(x: Undefined): return 1\nprint(f(1))",
    "pickles_own_class": "import pickle\nclass A:\n    x = 1\nprint(pickle.loads(pickle.dumps(A())).x, A.__module__)",
    "argv_and_name": "import sys\nprint(len(sys.argv), __name__, __doc__)",
    "reads_all": "import sys\nprint(len(sys.stdin.read()))",
    "reads_descriptor": "import os\nprint(os.read(0, 100))",
    "writes_descriptor": "import os, sys\nos.write(1, b'one ')\nsys.stdout.write('two')",
    "closed_stdout": "import sys\nsys.stdout.close()",
    "replaced_stdout": "import io, sys\nsys.stdout = io.StringIO()\nprint('gone')",
    "rewrapped_stdout": "import io, sys\nsys.stdout = io.TextIOWrapper(open(1, 'wb', closefd=False), write_through=False)\nprint('kept')",
    "deleted_stderr": "import sys\nprint(1)\ndel sys.stderr",
    "closed_stderr_descriptor": "import os, sys\nsys.stderr.close()\nos.close(2)\nprint(1)",
    "builtins_taken_away": "import builtins\nprint(1)\nfor n in 'open isinstance tuple len bool print getattr BaseException'.split(): delattr(builtins, n)",
    "os_taken_away": "import os\nprint(1)\nos._exit = None",
    "reads_again": "import sys\nfirst = sys.stdin.read()\nsys.stdin.seek(0)\nprint(first == sys.stdin.read(), sys.stdin.seekable())",
    "tells": "import sys\nsys.stdin.readline()\nprint('ab', flush=True)\nprint(sys.stdin.tell(), sys.stdout.tell(), sys.stdout.seekable())",
    "open_file_at_exit": "out = open(1, 'w', closefd=False)\nout.write('late')",
    "undecodable_output": "import sys\nsys.stdout.buffer.write(bytes(range(256)))",
    "detached_wrapper": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')\nprint('ñ kept')",
    "detached_writer": "import codecs, sys\nsys.stdout = codecs.getwriter('utf-8')(sys.stdout.detach())\nprint('ñ kept')",
    "suspended_generator": "def g():\n    try: yield 1\n    finally: print('closed')\nkept = g()\nnext(kept)\nprint('end')",
    "suspended_context": "import contextlib\n@contextlib.contextmanager\ndef c():\n    try: yield\n    finally: print('left')\nm = c()\nm.__enter__()",
    "weak_finalizer": "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'finalized')\nprint('x')",
    "finalizer_made_by_name": "A = type('A', (), {'__de' + 'l__': lambda s: print('gone')})\na = A()",
    "finalizer_that_raises": "class A:\n    def __del__(self): raise ValueError\na = A()\nprint('x')",
    "recursion_error": "def f(): f()\nf()",
    "exactly_deep_enough": "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(960))",
    "system_exit_in_thread": "import threading, sys\nt = threading.Thread(target=sys.exit)\nt.start(); t.join()\nprint('on')",
    "warning": "import warnings\nwarnings.warn('x')\nprint(1)",
    "fork_and_wait": "import os, sys\nsys.stdout.flush()\npid = os.fork()\nif pid == 0: os._exit(3)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    "executor_at_exit": "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor().submit(print, 'done')",
}
STDIN = b"one two\nthree\n"


def _oracle(code: str) -> tuple[bytes, int]:
    environment = {"PYTHONUTF8": "1", "PATH": os.defpath}
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as printed:  # as `python solution.py < in > out`
        given.write(STDIN)
        given.seek(0)
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=given,
            stdout=printed,
            stderr=subprocess.DEVNULL,
            env=environment,
            check=False,
        )
        printed.seek(0)
        return printed.read(), done.returncode


@pytest.mark.long
def test_scripts_end_as_under_the_interpreter() -> None:
    async def ours() -> dict[str, tuple[bytes, int | None]]:
        async with EmbeddedSandbox(2) as box:
            done = await asyncio.gather(*(collect(box, stdin_job(code, STDIN)) for code in PROGRAMS.values()))
            return {name: (one[0].stdout, one[0].exit_code) for name, one in zip(PROGRAMS, done, strict=True)}

    assert asyncio.run(ours()) == {name: _oracle(code) for name, code in PROGRAMS.items()}
