"""Honest programs that read stdin and print: one entry for each idiom of competitive Python that a grader has been seen to fail."""

from __future__ import annotations

from textwrap import dedent

from tests.grading.corpus.entries import PASSED, Entry, stdin_problem, sum_problem

SUM = sum_problem()
LINES = stdin_problem("shout", ("a b\nc\n\nd\n", "A B\nC\n\nD\n"), ("x\n", "X\n"))
CHAIN = stdin_problem("depth", ("50000\n", "50000\n"), ("3\n", "3\n"))
POWER = stdin_problem("power", ("20000\n", f"{'1' + '0' * 20000}\n"), ("3\n", "1000\n"))

_SUM_PROGRAMS = {
    "input": "n = int(input())\nprint(sum(map(int, input().split())))",
    "open_zero": "data = open(0).read().split()\nprint(sum(map(int, data[1:])))",
    "open_zero_binary": "import sys\nwith open(0, 'rb') as f:\n    data = f.read().split()\nprint(sum(map(int, data[1:])))",
    "open_dev_stdin": "data = open('/dev/stdin').read().split()\nprint(sum(map(int, data[1:])))",
    "os_read": "import os\ndata = os.read(0, 1 << 20).split()\nprint(sum(map(int, data[1:])))",
    "stdin_read": "import sys\ndata = sys.stdin.read().split()\nprint(sum(map(int, data[1:])))",
    "stdin_buffer_read": "import sys\ndata = sys.stdin.buffer.read().split()\nprint(sum(map(int, data[1:])))",
    "stdin_buffer_readline": "import sys\ninput = sys.stdin.buffer.readline\nn = int(input())\nprint(sum(map(int, input().split())))",
    "stdin_readline_alias": "import sys\ninput = sys.stdin.readline\nn = int(input())\nprint(sum(map(int, input().split())))",
    "stdin_readlines": "import sys\nlines = sys.stdin.readlines()\nprint(sum(map(int, lines[1].split())))",
    "for_line_in_stdin": "import sys\nrows = []\nfor line in sys.stdin:\n    rows.append(line.split())\nprint(sum(map(int, rows[1])))",
    "stdin_fileno": "import sys, os\nsize = os.fstat(sys.stdin.fileno()).st_size\ndata = os.read(sys.stdin.fileno(), max(size, 1 << 16)).split()\nprint(sum(map(int, data[1:])))",
    "bytesio_stdin": "import io, os, sys\nsys.stdin = io.StringIO(os.read(0, 1 << 20).decode())\nn = int(input())\nprint(sum(map(int, input().split())))",
    "fast_io_template": """
        import os, sys
        from io import BytesIO, IOBase
        class FastIO(IOBase):
            newlines = 0
            def __init__(self, file):
                self._fd = file.fileno()
                self.buffer = BytesIO()
                self.writable = "x" in file.mode or "r" not in file.mode
                self.write = self.buffer.write if self.writable else None
            def readline(self):
                while self.newlines == 0:
                    b = os.read(self._fd, max(os.fstat(self._fd).st_size, 8192))
                    self.newlines = b.count(b"\\n") + (not b)
                    ptr = self.buffer.tell()
                    self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
                self.newlines -= 1
                return self.buffer.readline()
            def flush(self):
                if self.writable:
                    os.write(self._fd, self.buffer.getvalue())
                    self.buffer.truncate(0), self.buffer.seek(0)
        class IOWrapper(IOBase):
            def __init__(self, file):
                self.buffer = FastIO(file)
                self.flush = self.buffer.flush
                self.writable = self.buffer.writable
                self.write = lambda s: self.buffer.write(s.encode("ascii"))
                self.readline = lambda: self.buffer.readline().decode("ascii")
        sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)
        input = lambda: sys.stdin.readline().rstrip("\\r\\n")
        n = int(input())
        print(sum(map(int, input().split())))
        sys.stdout.flush()
        """,
    "input_until_eof": """
        words = []
        while True:
            try:
                words += input().split()
            except EOFError:
                break
        print(sum(map(int, words[1:])))
        """,
    "fileinput_module": "import fileinput\nrows = [line.split() for line in fileinput.input()]\nprint(sum(map(int, rows[1])))",
    "iter_input_sentinel": "n = int(input())\nit = iter(input, '')\nprint(sum(map(int, next(it).split())))",
    "stdout_write": "import sys\nn = int(input())\nsys.stdout.write(str(sum(map(int, input().split()))) + '\\n')",
    "no_final_newline": "import sys\ninput()\nsys.stdout.write(str(sum(map(int, input().split()))))",
    "print_end_empty": "input()\nprint(sum(map(int, input().split())), end='')",
    "stdout_buffer": "import sys\ninput()\nsys.stdout.buffer.write(b'%d\\n' % sum(map(int, input().split())))",
    "os_write": "import os\ninput()\nos.write(1, (str(sum(map(int, input().split()))) + '\\n').encode())",
    "print_to_stringio": """
        import io, sys
        out = io.StringIO()
        input()
        print(sum(map(int, input().split())), file=out)
        sys.stdout.write(out.getvalue())
        """,
    "print_flush": "input()\nprint(sum(map(int, input().split())), flush=True)",
    "reopened_stdout": "import os\ninput()\nwith os.fdopen(1, 'w') as out:\n    out.write(str(sum(map(int, input().split()))))",
    "atexit_output": """
        import atexit
        out = []
        atexit.register(lambda: print("\\n".join(out)))
        input()
        out.append(str(sum(map(int, input().split()))))
        """,
    "del_output": """
        class Printer:
            def __init__(self, text):
                self.text = text
            def __del__(self):
                print(self.text)
        input()
        printer = Printer(sum(map(int, input().split())))
        """,
    "exit_after": "input()\nprint(sum(map(int, input().split())))\nexit()",
    "quit_after": "input()\nprint(sum(map(int, input().split())))\nquit()",
    "exit_zero_in_function": """
        import sys
        def main():
            input()
            print(sum(map(int, input().split())))
            sys.exit(0)
        main()
        """,
    "raise_system_exit": "input()\nprint(sum(map(int, input().split())))\nraise SystemExit",
    "os_exit_zero_after_flush": "import os\ninput()\nprint(sum(map(int, input().split())), flush=True)\nos._exit(0)",
    "global_state": """
        answer = 0
        def read():
            global answer, n
            n = int(input())
            answer = sum(map(int, input().split()))
        read()
        print(answer)
        """,
    "main_guard": "def main():\n    input()\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
    "main_guard_not_last": """
        if __name__ == "__main__":
            import sys
            data = sys.stdin.read().split()
        answer = sum(map(int, data[1:]))
        print(answer)
        """,
    "future_import": "from __future__ import annotations\ndef f(x: Missing) -> Nothing:\n    return x\ninput()\nprint(f(sum(map(int, input().split()))))",
    "docstring_then_future": '"""Adds."""\nfrom __future__ import division\ninput()\nprint(sum(map(int, input().split())))',
    "triple_quoted_text": '''
        NOTE = """
        if __name__ == '__main__':
            print("not code")
            input()
        """
        input()
        print(sum(map(int, input().split())))
        ''',
    "star_import_late": """
        n = int(input())
        from math import *
        from itertools import *
        from collections import *
        print(int(fsum([0])) + sum(map(int, input().split())))
        """,
    "function_named_like_builtin": "def sum_(xs):\n    list = 0\n    for x in xs:\n        list += x\n    return list\ninput()\nprint(sum_(map(int, input().split())))",
    "dataclass": """
        from dataclasses import dataclass, field
        @dataclass(order=True, slots=True)
        class Box:
            items: list[int] = field(default_factory=list)
            def total(self) -> int:
                return sum(self.items)
        input()
        print(Box(list(map(int, input().split()))).total())
        """,
    "enum_and_namedtuple": """
        import enum
        from collections import namedtuple
        from typing import NamedTuple
        class Kind(enum.IntEnum):
            PLUS = 1
        class Step(NamedTuple):
            kind: Kind
            value: int
        Point = namedtuple("Point", "x y")
        input()
        steps = [Step(Kind.PLUS, int(word)) for word in input().split()]
        print(Point(sum(s.kind * s.value for s in steps), 0).x)
        """,
    "class_with_main_method": """
        class Solver:
            def run(self):
                self.n = int(input())
                self.items = [int(word) for word in input().split()]
                return self
            def __str__(self):
                return str(sum(self.items))
        print(Solver().run())
        """,
    "pickle_and_deepcopy_of_own_class": """
        import copy, pickle
        class Node:
            def __init__(self, value):
                self.value = value
        input()
        nodes = [Node(int(word)) for word in input().split()]
        nodes = pickle.loads(pickle.dumps(copy.deepcopy(nodes)))
        print(sum(node.value for node in nodes))
        """,
    "generator_reader": """
        import sys
        def words():
            for line in sys.stdin:
                yield from line.split()
        reader = words()
        n = int(next(reader))
        print(sum(int(next(reader)) for _ in range(n)))
        """,
    "walrus": "import sys\ntotal = 0\nn = int(input())\nwhile (line := sys.stdin.readline()):\n    total += sum(map(int, line.split()))\nprint(total)",
    "match_statement": """
        import sys
        match sys.stdin.read().split():
            case [n, *rest]:
                print(sum(map(int, rest)))
            case _:
                print("empty")
        """,
    "lambda_and_reduce": "from functools import reduce\nimport operator\ninput()\nprint(reduce(operator.add, map(int, input().split())))",
    "string_template": "from string import Template\ninput()\nprint(Template('$x').substitute(x=sum(map(int, input().split()))))",
    "f_string_and_format": "input()\ns = sum(map(int, input().split()))\nprint(f'{s:d}'.format())",
    "counter_and_defaultdict": """
        from collections import Counter, defaultdict, deque
        input()
        counts = Counter(map(int, input().split()))
        store = defaultdict(int)
        for key, times in counts.items():
            store["sum"] += key * times
        print(deque([store["sum"]]).pop())
        """,
    "heapq_and_bisect": """
        import heapq
        from bisect import insort
        input()
        heap, kept = list(map(int, input().split())), []
        heapq.heapify(heap)
        while heap:
            insort(kept, heapq.heappop(heap))
        print(sum(kept))
        """,
    "itertools_accumulate": "from itertools import accumulate, chain\ninput()\n*_, last = accumulate(chain([0], map(int, input().split())))\nprint(last)",
    "decimal": "from decimal import Decimal, getcontext\ngetcontext().prec = 50\ninput()\nprint(sum(map(Decimal, input().split())))",
    "fractions": "from fractions import Fraction\ninput()\nprint(sum(map(Fraction, input().split()), Fraction(0)))",
    "numpy": "import numpy as np\nimport sys\ndata = np.array(sys.stdin.read().split(), dtype=np.int64)\nprint(data[1:].sum())",
    "numpy_late_import": "def main():\n    import numpy\n    input()\n    print(int(numpy.fromstring(input(), dtype=numpy.int64, sep=' ').sum()))\nmain()",
    "sortedcontainers": "from sortedcontainers import SortedList\ninput()\nprint(sum(SortedList(map(int, input().split()))))",
    "async_main": """
        import asyncio
        async def main():
            await asyncio.sleep(0)
            input()
            print(sum(map(int, input().split())))
        asyncio.run(main())
        """,
    "thread_pool": """
        from concurrent.futures import ThreadPoolExecutor
        input()
        with ThreadPoolExecutor(4) as pool:
            print(sum(pool.map(int, input().split())))
        """,
    "print_from_thread_not_joined": """
        import threading
        def work():
            input()
            print(sum(map(int, input().split())))
        threading.Thread(target=work).start()
        """,
    "signal_handler_and_resource_query": """
        import resource, signal
        signal.signal(signal.SIGINT, lambda *_: None)
        resource.getrusage(resource.RUSAGE_SELF)
        input()
        print(sum(map(int, input().split())))
        """,
    "warnings_on_stderr": "import sys, warnings\nwarnings.warn('odd')\nprint('debug', file=sys.stderr)\ninput()\nprint(sum(map(int, input().split())))",
    "temporary_file": """
        import os, tempfile
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "data.txt")
            with open(path, "w") as out:
                input()
                out.write(input())
            print(sum(map(int, open(path).read().split())))
        """,
    "exec_of_source": "source = 'input()\\nprint(sum(map(int, input().split())))'\nexec(compile(source, 'inner', 'exec'))",
    "crlf_source": "n = int(input())\r\nif n >= 0:\r\n    print(sum(map(int, input().split())))\r\n",
    "byte_order_mark": "\ufeffinput()\nprint(sum(map(int, input().split())))",
    "coding_cookie_and_unicode_names": "# -*- coding: utf-8 -*-\nπ = 0\ninput()\nσ = sum(map(int, input().split()))\nprint(σ + π)",
    "reads_argv_and_name": "import sys\nassert len(sys.argv) == 1 and __name__ == '__main__'\ninput()\nprint(sum(map(int, input().split())))",
    "gc_and_recursion_settings": "import gc, sys\ngc.disable()\nsys.setrecursionlimit(10**6)\nsys.set_int_max_str_digits(0)\ninput()\nprint(sum(map(int, input().split())))",
    "random_and_time": "import random, time\nstart = time.time()\nrandom.seed(1)\ninput()\nitems = list(map(int, input().split()))\nrandom.shuffle(items)\ntime.perf_counter()\nprint(sum(items))",
    "ignores_the_rest_of_input": "n = input()\nprint(sum(map(int, input().split())) if n else 0)",
}

_OTHER_PROGRAMS = {
    "lines_until_eof": ("import sys\nfor line in sys.stdin:\n    print(line.rstrip('\\n').upper())", LINES),
    "splitlines": ("import sys\nprint('\\n'.join(s.upper() for s in sys.stdin.read().splitlines()))", LINES),
    "deep_recursion_in_big_thread": (
        """
        import sys, threading
        sys.setrecursionlimit(10**7)
        threading.stack_size(512 * 1024 * 1024)
        def depth(n):
            return 0 if n == 0 else 1 + depth(n - 1)
        def main():
            print(depth(int(input())))
        thread = threading.Thread(target=main)
        thread.start()
        thread.join()
        """,
        CHAIN,
    ),
    "deep_recursion_in_main_thread": (
        "import sys\nsys.setrecursionlimit(200000)\ndef depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\nprint(depth(int(input())))",
        CHAIN,
    ),
    "lru_cache_recursion": (
        """
        import sys
        from functools import lru_cache
        sys.setrecursionlimit(10**6)
        @lru_cache(None)
        def depth(n):
            return 0 if n == 0 else 1 + depth(n - 1)
        n = int(input())
        for step in range(0, n, 400):
            depth(step)
        print(depth(n))
        """,
        CHAIN,
    ),
    "bootstrap_generator_recursion": (
        """
        from types import GeneratorType
        def bootstrap(f, stack=[]):
            def wrapped(*args, **kwargs):
                if stack:
                    return f(*args, **kwargs)
                to = f(*args, **kwargs)
                while True:
                    if type(to) is GeneratorType:
                        stack.append(to)
                        to = next(to)
                    else:
                        stack.pop()
                        if not stack:
                            return to
                        to = stack[-1].send(to)
            return wrapped
        @bootstrap
        def depth(n):
            if n == 0:
                yield 0
            yield 1 + (yield depth(n - 1))
        print(depth(int(input())))
        """,
        CHAIN,
    ),
    "integers_over_4300_digits": ("print(10 ** int(input()))", POWER),
    "integers_over_4300_digits_parsed": ("n = int(input())\nprint(int('1' + '0' * n))", POWER),
}

HONEST_STDIN: tuple[Entry, ...] = (
    *(
        Entry(name, "stdin idiom", _text, SUM, PASSED)
        for name, _text in ((n, dedent(c)) for n, c in _SUM_PROGRAMS.items())
    ),
    *(Entry(name, "stdin idiom", dedent(code), problem, PASSED) for name, (code, problem) in _OTHER_PROGRAMS.items()),
)
