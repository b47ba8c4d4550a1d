"""Inputs and the state between the tests of one submission."""

import pytest

from code_rl.grading.sandbox import Status
from tests.grading.jobs import stdin_job
from tests.grading.sandbox.sandbox_boxes import LEVELS, run, run_jobs, run_one


def test_a_large_input_that_is_read_ignored_or_closed():
    data = b"x" * (50 << 20)
    assert run_one("import sys\nprint(len(sys.stdin.buffer.read()))", data).stdout == b"%d\n" % len(data)
    assert run_one("print('no')", data).stdout == b"no\n"
    assert run_one("import os\nos.close(0)\nprint('closed')", data).stdout == b"closed\n"


@pytest.mark.parametrize("level", LEVELS)
def test_every_test_starts_clean(level):
    codes = (
        "import os\nprint(sorted(os.listdir('.')))\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')\nos.chmod('a', 0)"
        if level == "full"
        else "import os\nprint(sorted(os.listdir('.')))\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')",
        "import builtins\nprint(hasattr(builtins, 'planted'))\nbuiltins.planted = 1",
        "import os\nprint(os.umask(0o777))",
        "import os\nprint(os.environ.get('PLANTED'))\nos.environ['PLANTED'] = '1'\nos.putenv('PLANTED', '1')",
        "import sys\nprint(sys.stdin.read(), end='')\nsys.stdin.close()",
        "import fcntl, os\nprint(fcntl.fcntl(1, fcntl.F_GETFL) & os.O_NONBLOCK)",
    )
    for done in run_jobs(*(stdin_job(code, b"i", b"i", b"i") for code in codes), level=level):
        assert len({one.stdout for one in done}) == 1
        assert {one.status for one in done} == {Status.OK}


def test_deeply_nested_leftovers_do_not_reach_the_next_test():
    code = "import os\nprint(os.listdir('.'))\nfor _ in range(1000):\n    os.mkdir('d')\n    os.chdir('d')"
    for level in LEVELS:
        assert {one.stdout for one in run(stdin_job(code, b"", b""), level)} == {b"['solution.py']\n"}


def test_randomness_and_hashes_repeat_for_the_same_program_and_input():
    code = "import random\nprint(random.random(), hash('a'), list({'x', 'y', 'z'}))"
    first, second = run_jobs(stdin_job(code, b"1", b"2"), stdin_job(code, b"1", b"2"))
    again = run(stdin_job(code, b"2", b"1"))
    assert [one.stdout for one in first] == [one.stdout for one in second] == [one.stdout for one in again[::-1]]
    assert first[0].stdout != first[1].stdout


DRAWS = {
    "the global generator of NumPy": "import numpy\nprint(numpy.random.rand())",
    "NumPy imported within": "if True: import numpy\nprint(numpy.random.rand())",
    "a new generator of NumPy": "from numpy.random import default_rng\nprint(default_rng().random())",
    "the order of a set of objects": "things = [object() for _ in range(40)]\nprint([things.index(each) for each in set(things)])",
    "addresses": "print(id([]), id(object()))",
}


@pytest.mark.long
@pytest.mark.parametrize("level", LEVELS)
def test_a_program_gives_the_same_answer_in_every_sandbox(level):
    jobs = [stdin_job(code) for code in DRAWS.values() for _ in range(3)]
    one, other = (run_jobs(*jobs, level=level, own=True) for _ in range(2))
    answers = [{each.stdout for done in (one + other)[n::3] for each in done} for n in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) == len(DRAWS)


HONEST = {
    "imports itself": "import solution\nprint(solution.__name__)",
    "imports a module that it writes": "print('x = 1', file=open('mine.py', 'w'), flush=True)\nimport mine\nprint(mine.x)",
    "asks for its user": "import getpass\nprint(getpass.getuser())",
    "keeps a database on disk": "import sqlite3\nprint(sqlite3.connect('a.db').execute('create table t (x)'))",
    "asks for the load": "import os\nprint(len(os.getloadavg()))",
}


@pytest.mark.parametrize("level", LEVELS)
def test_honest_programs_run(level):
    done = run_jobs(*map(stdin_job, HONEST.values()), level=level)
    assert {name for name, (one,) in zip(HONEST, done, strict=True) if one.status is Status.OK and one.stdout} == {
        *HONEST
    }


def test_scientific_packages_are_there():
    pytest.importorskip("numpy")
    pytest.importorskip("sortedcontainers")
    code = "import numpy as np\nfrom sortedcontainers import SortedList\nprint(np.arange(4).sum(), SortedList([2, 1]))"
    hidden = "np = __import__('num' + 'py')\nprint(np.arange(4).sum())"
    for level in LEVELS:
        assert run_one(code, level=level).stdout == b"6 SortedList([1, 2])\n"
        assert run_one(hidden, level=level).stdout == b"6\n"


CARRIED = {
    "a change of the program's own file": """import os
path = 'solution.py'
carried = open(path).read().endswith('#')
os.chmod(path, 0o644)
with open(path, 'a') as file: file.write('#')
os.chmod(path, 0o444)
os.utime(path, (0, 0)); os.utime('.', (0, 0))
print(carried)
""",
    "a mode of the program's own file": """import os
carried = os.stat('solution.py').st_mode & 0o777
os.chmod('solution.py', 0o400)
print(carried != 0o444)
""",
    "a time of the program's own file": """import os
carried = os.stat('solution.py').st_mtime_ns
os.utime('solution.py', ns=(0, 7))
print(carried != 0)
""",
    "a file beside it": """import os
carried = os.path.exists('x')
open('x', 'w').close()
os.utime('.', (0, 0))
print(carried)
""",
    "no program's file at all": """import os
carried = not os.path.exists('solution.py')
os.unlink('solution.py')
os.utime('.', (0, 0))
print(carried)
""",
}


@pytest.mark.parametrize("way", CARRIED)
def test_a_test_finds_nothing_of_an_earlier_one(way):
    if "full" not in LEVELS:
        pytest.skip("elsewhere a program cannot change modes and times")
    assert {one.stdout for one in run(stdin_job(CARRIED[way], *"1234"), "full")} == {b"False\n"}
