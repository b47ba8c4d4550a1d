"""Hostile programs that read stdin: each tries to be paid without solving the problem, or to take the grader down with it."""

from __future__ import annotations

from textwrap import dedent

from tests.grading.corpus.entries import FAILED, Entry, sum_problem

SUM = sum_problem(time_limit_s=1.0, memory_limit_mb=256)

_PROGRAMS: dict[str, dict[str, str]] = {
    "early exit": {
        "os_exit_0": "import os\nos._exit(0)",
        "sys_exit_0": "import sys\nsys.exit(0)",
        "exit_before_reading": "exit()",
        "raise_system_exit": "raise SystemExit(0)",
        "system_exit_with_text": "raise SystemExit('6')",
        "atexit_os_exit": "import atexit, os\natexit.register(os._exit, 0)\nprint('wrong')",
        "excepthook_os_exit": "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\nraise ValueError",
        "unraisable_hook": "import os, sys\nsys.unraisablehook = lambda *a: os._exit(0)\nclass A:\n    def __del__(self):\n        raise ValueError\nA()",
        "execv_true": "import os\nos.execv('/bin/true', ['true'])",
        "execv_python": "import os, sys\nos.execv(sys.executable, ['python', '-c', 'pass'])",
        "thread_exits_process": "import os, threading, time\nthreading.Thread(target=lambda: os._exit(0)).start()\ntime.sleep(5)",
        "fork_parent_exits_0": "import os, time\nif os.fork():\n    os._exit(0)\ntime.sleep(5)",
        "sigalrm_exit_0": "import os, signal, time\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\nsignal.alarm(1)\ntime.sleep(10)",
        "kill_self": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "abort": "import os\nos.abort()",
        "segfault": "import ctypes\nctypes.string_at(0)",
        "closes_everything": "import os\nos.closerange(0, 4096)",
        "finalizer_flushes_nothing": "import sys\nsys.stdout = None\nsys.exit(0)",
    },
    "patched grader": {
        "sys_exit_patched": "import sys\nsys.exit = lambda code=0: None\nprint(0)",
        "any_all_patched": "import builtins\nbuiltins.any = lambda x: False\nbuiltins.all = lambda x: True\nprint(0)",
        "json_patched": "import json\njson.loads = lambda *a, **k: True\njson.dumps = lambda *a, **k: 'true'\nprint(0)",
        "str_strip_patched_by_gc": """
            import gc
            for table in gc.get_referrents(str.__dict__) if hasattr(gc, "get_referrents") else gc.get_referents(str.__dict__):
                if isinstance(table, dict):
                    table["__eq__"] = lambda a, b: True
                    table["strip"] = lambda a, *b: "6"
            print(0)
            """,
        "stdout_str_subclass": """
            import sys
            class Always(str):
                def __eq__(self, other): return True
                def __hash__(self): return 0
                def strip(self, *a): return self
                def split(self, *a): return self
            class Out:
                def write(self, text): return len(text)
                def flush(self): pass
                def getvalue(self): return Always("")
                def read(self): return Always("")
            sys.stdout = sys.__stdout__ = Out()
            print(0)
            """,
        "compare_module_patched": """
            import sys
            for name, module in list(sys.modules.items()):
                for attribute in ("compare", "compare_printed", "compare_lcb", "judge", "check", "run_test", "grade_stdio"):
                    if hasattr(module, attribute):
                        setattr(module, attribute, lambda *a, **k: None)
            print(0)
            """,
        "number_classes_patched": "import fractions, decimal\nfractions.Fraction.__eq__ = lambda a, b: True\ndecimal.Decimal = lambda *a: 0\nprint(0)",
        "trace_and_profile_hooks": """
            import sys, threading
            def hook(frame, event, arg):
                for name in list(frame.f_locals):
                    if "expect" in name or name in ("want", "right", "answer"):
                        print(frame.f_locals[name])
                return hook
            sys.settrace(hook); sys.setprofile(hook); threading.settrace(hook)
            print(0)
            """,
    },
    "reads the expected output": {
        "frame_walk": """
            import sys
            frame, found = sys._getframe(), []
            while frame:
                found += [v for k, v in {**frame.f_globals, **frame.f_locals}.items() if "expect" in k or "output" in k or "tests" in k]
                frame = frame.f_back
            print(found[0] if found else "none")
            """,
        "gc_search": """
            import gc
            first = input()
            numbers = [int(word) for word in input().split()]
            target = sum(numbers) - 0
            del numbers
            hits = [o for o in gc.get_objects() if type(o) is dict and ("expected" in o or "output" in o)]
            print([o.get("expected", o.get("output")) for o in hits][:1] or "none")
            """,
        "cmdline_and_environ": """
            import os, re
            text = open("/proc/self/cmdline").read() + open("/proc/self/environ").read() + repr(dict(os.environ))
            print(re.findall(r"expected\\W+(\\d+)", text)[:1] or text)
            """,
        "parent_cmdline": "import os\nprint(open(f'/proc/{os.getppid()}/cmdline').read())",
        "test_file_search": """
            import glob, json, os
            found = []
            for root in (".", "/tmp", "/dev/shm", "/root", "/home", "/work", "/sandbox", "/var/tmp"):
                for folder, _, names in os.walk(root):
                    for name in names:
                        if name.endswith((".json", ".jsonl", ".txt", ".pkl", ".out")):
                            try:
                                found.append(open(os.path.join(folder, name)).read())
                            except (OSError, UnicodeDecodeError):
                                pass
            print(found[0] if found else "none")
            """,
        "inherited_descriptors": """
            import os
            found = b""
            for fd in range(3, 1024):
                try:
                    os.set_blocking(fd, False)
                    found += os.read(fd, 1 << 16)
                except OSError:
                    pass
            print(found.decode("latin-1") or "none")
            """,
        "memory_of_the_parent": """
            import os
            text = ""
            for pid in {os.getppid(), 1}:
                try:
                    for line in open(f"/proc/{pid}/maps"):
                        low, high = (int(part, 16) for part in line.split()[0].split("-"))
                        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
                            memory.seek(low)
                            text += memory.read(min(high - low, 1 << 20)).decode("latin-1")
                except (OSError, ValueError, OverflowError):
                    pass
            print(text[text.find("expected"):][:100] or "none")
            """,
        "own_memory": """
            import re
            seen = []
            for line in open("/proc/self/maps"):
                part = line.split()
                low, high = (int(x, 16) for x in part[0].split("-"))
                if "rw" in part[1] and high - low < 1 << 24:
                    try:
                        with open("/proc/self/mem", "rb", 0) as memory:
                            memory.seek(low)
                            seen += re.findall(rb'"expected": ?"?(-?\\d+)', memory.read(high - low))
                    except (OSError, ValueError, OverflowError):
                        pass
            print(seen[0].decode() if seen else "none")
            """,
        "future_inputs": """
            import os, sys
            data = sys.stdin.buffer.read()
            more = b""
            for fd in range(0, 64):
                try:
                    os.lseek(fd, 0, 0)
                    more += os.read(fd, 1 << 16)
                except OSError:
                    pass
            print(more.decode("latin-1") or "none")
            """,
    },
    "forged results": {
        "frames_on_every_descriptor": """
            import json, os, struct
            body = json.dumps({"status": "ok", "stdout": "6\\n", "exit_code": 0, "passed": True}).encode()
            for fd in range(3, 1024):
                for frame in (body + b"\\n", struct.pack("<I", len(body)) + body, struct.pack(">I", len(body)) + body):
                    try:
                        os.write(fd, frame)
                    except OSError:
                        pass
            print(0)
            """,
        "pickles_on_every_descriptor": """
            import os, pickle
            class Boom:
                def __reduce__(self):
                    return (os.system, ("touch /tmp/breach",))
            for fd in range(3, 1024):
                try:
                    os.write(fd, pickle.dumps(Boom()))
                except OSError:
                    pass
            print(0)
            """,
        "garbage_then_exit": """
            import os
            for fd in range(3, 1024):
                try:
                    os.write(fd, os.urandom(4096))
                except OSError:
                    pass
            os._exit(0)
            """,
        "verdict_words_on_stdout": 'print(\'passed\')\nprint(\'{"verdict": "passed", "passed": 5, "total": 5}\')',
        "verdict_words_on_stderr": "import sys\nsys.stderr.write('passed\\n[true, true, true, true, true]\\n')",
        "closes_result_descriptors": "import os\nos.closerange(3, 4096)\nprint(0)",
        "dup_stdout_over_descriptors": """
            import os
            for fd in range(3, 256):
                try:
                    os.fstat(fd)
                    os.dup2(1, fd)
                except OSError:
                    pass
            print(6)
            """,
        "truncates_its_capture_files": """
            import os
            for fd in range(0, 64):
                try:
                    os.ftruncate(fd, 0)
                    os.lseek(fd, 0, 0)
                    os.write(fd, b"6\\n")
                except OSError:
                    pass
            """,
        "rewrites_its_input": "import os\ntry:\n    os.pwrite(0, b'1\\n0\\n' + b' ' * 500, 0)\nexcept OSError:\n    pass\nprint(0)",
    },
    "output tricks": {
        "every_small_number": "print('\\n'.join(map(str, range(-1000, 6000))))",
        "empty_output": "pass",
        "echo_input": "import sys\nsys.stdout.write(sys.stdin.read())",
        "nan": "print('nan')",
        "right_then_killed": "import os, signal\ninput()\nprint(sum(map(int, input().split())), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)",
        "right_then_exit_1": "import sys\ninput()\nprint(sum(map(int, input().split())))\nsys.exit(1)",
        "right_then_exception": "input()\nprint(sum(map(int, input().split())), flush=True)\nraise ValueError",
        "right_then_spin": "input()\nprint(sum(map(int, input().split())), flush=True)\nwhile True:\n    pass",
        "right_then_more": "input()\nprint(sum(map(int, input().split())))\nprint(0)",
        "off_by_one_in_large": "input()\ns = sum(map(int, input().split()))\nprint(s + (s > 10**9))",
        "float_for_large_integer": "input()\nprint('%.5e' % sum(map(int, input().split())))",
        "only_first_test": "import sys\nd = sys.stdin.read().split()\nprint(6 if d[0] == '3' else 0)",
        "not_utf8": "import os\nos.write(1, b'\\xff\\xfe6\\n')",
        "surrogates": "import sys\nsys.stdout.reconfigure(errors='surrogatepass')\nprint('\\ud800')",
        "nul_bytes": "import os\nos.write(1, b'6\\x00\\n')",
        "huge_integer": "import sys\nsys.set_int_max_str_digits(0)\nprint('9' * 2000000)",
        "exponent_bomb": "print('1e999999999')",
        "flood": "import sys\nwhile True:\n    sys.stdout.write('6\\n' * 100000)",
        "flood_stderr": "import sys\nwhile True:\n    sys.stderr.write('x' * 100000)",
    },
    "other submissions": {
        "answers_kept_in_tmp": """
            import os
            data = input() + input()
            for folder in ("/tmp", "/dev/shm", "/var/tmp", os.getcwd()):
                path = os.path.join(folder, "answers.txt")
                try:
                    known = open(path).read()
                except OSError:
                    known = ""
                if data in known:
                    print(known)
                try:
                    open(path, "a").write(data)
                except OSError:
                    pass
            print(0)
            """,
        "planted_sitecustomize": """
            import os, site, sys
            for folder in [*sys.path, "/tmp", os.getcwd(), site.getusersitepackages()]:
                for name in ("sitecustomize.py", "usercustomize.py", "heapq.py", "x.pth"):
                    try:
                        os.makedirs(folder, exist_ok=True)
                        open(os.path.join(folder, name), "w").write("PLANTED = True\\n")
                    except OSError:
                        pass
            print(0)
            """,
        "planted_bytecode": """
            import glob, sys
            for folder in sys.path:
                for path in glob.glob(folder + "/**/__pycache__/*.pyc", recursive=True)[:50]:
                    try:
                        open(path, "r+b").write(b"\\0" * 64)
                    except OSError:
                        pass
            print(0)
            """,
        "counter_across_tests": """
            import os
            path = "/tmp/counter"
            n = int(open(path).read()) if os.path.exists(path) else 0
            open(path, "w").write(str(n + 1))
            print([6, 7, 11, 5050][n] if n < 4 else 900000000037)
            """,
        "counter_in_shared_memory": """
            from multiprocessing import shared_memory
            try:
                block = shared_memory.SharedMemory("counter", create=True, size=8)
            except FileExistsError:
                block = shared_memory.SharedMemory("counter")
            except OSError:
                print(0); raise SystemExit
            block.buf[0] += 1
            print([6, 7, 11, 5050, 900000000037][block.buf[0] - 1])
            """,
    },
    "resources": {
        "spin": "while True:\n    pass",
        "sleep": "import time\ntime.sleep(3600)",
        "ignores_sigterm_and_sigxcpu": "import signal\nfor s in range(1, 64):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\nwhile True:\n    pass",
        "raises_its_own_limits": "import resource\nfor k in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE):\n    try:\n        resource.setrlimit(k, (-1, -1))\n    except (OSError, ValueError):\n        pass\nwhile True:\n    pass",
        "spin_in_children": "import os\nfor _ in range(8):\n    if os.fork() == 0:\n        while True:\n            pass\nos.wait()",
        "spin_in_threads": "import threading\ndef spin():\n    while True:\n        pass\nfor _ in range(8):\n    threading.Thread(target=spin).start()",
        "daemon_and_right_answer_never": "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True:\n            pass\n    os._exit(0)\nprint(0)",
        "memory_bomb": "x = []\nwhile True:\n    x.append(bytearray(1 << 24))",
        "memory_bomb_in_children": "import os\nfor _ in range(4):\n    if os.fork() == 0:\n        x = []\n        while True:\n            x.append(bytearray(1 << 24))\nwhile True:\n    try:\n        os.wait()\n    except ChildProcessError:\n        break\nprint(0)",
        "one_huge_allocation": "x = bytearray(1 << 40)",
        "fork_bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        "thread_bomb": "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,)).start()",
        "disk_fill": "import os\nn = 0\nwhile True:\n    with open(f'/tmp/f{n}', 'wb') as f:\n        for _ in range(64):\n            f.write(b'x' * (1 << 20))\n    n += 1",
        "inode_bomb": "n = 0\nwhile True:\n    open(f'/tmp/i{n}', 'w').close()\n    n += 1",
        "descriptor_exhaustion": "kept = []\nwhile True:\n    kept.append(open('/dev/null'))",
        "pipe_buffers": "import os\nkept = []\nwhile True:\n    a, b = os.pipe()\n    os.set_blocking(b, False)\n    os.write(b, b'x' * 65536)\n    kept.append((a, b))",
        "recursion_without_end": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        "regular_expression_without_end": "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')",
        "large_power": "print(10 ** 10 ** 9 % 7)",
        "source_that_folds_forever": "x = " + "+".join(["1"] * 200000),
        "deeply_nested_source": "x = " + "(" * 5000 + ")" * 5000,
        "nul_in_source": "print(6)\0",
        "syntax_error": "def f(:\n    pass",
        "unterminated_string": "print('6",
        "waits_for_more_input": "import sys\nwhile True:\n    sys.stdin.readline()",
        "stopped_by_itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    },
    "attacks on the supervisor": {
        "kills_everything": "import os, signal\nfor s in (signal.SIGTERM, signal.SIGKILL):\n    try:\n        os.kill(-1, s)\n    except OSError:\n        pass\nprint(0)",
        "kills_parent_and_init": "import os, signal\nfor pid in (os.getppid(), 1, 2, 3):\n    for s in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):\n        try:\n            if pid > 0:\n                os.kill(pid, s)\n        except OSError:\n            pass\nprint(0)",
        "kills_process_group": "import os, signal\nos.killpg(0, signal.SIGKILL)",
        "signals_every_pid": "import os, signal\nme = os.getpid()\nfor pid in range(1, 40000):\n    if pid != me:\n        try:\n            os.kill(pid, signal.SIGSTOP)\n        except OSError:\n            pass\nprint(0)",
        "ptrace_parent": """
            import ctypes, os
            libc = ctypes.CDLL(None, use_errno=True)
            for pid in (os.getppid(), 1):
                libc.ptrace(16, pid, 0, 0)
                libc.ptrace(0x4206, pid, 0, 0)
            print(0)
            """,
        "lowers_parent_limits": "import os, resource\ntry:\n    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))\nexcept (OSError, PermissionError, ValueError):\n    pass\nprint(0)",
        "renices_and_reschedules": "import os\nfor pid in (os.getppid(), 1):\n    try:\n        os.setpriority(os.PRIO_PROCESS, pid, 19)\n        os.sched_setaffinity(pid, {0})\n    except OSError:\n        pass\nprint(0)",
        "writes_to_parents_descriptors": """
            import glob, os
            for path in glob.glob("/proc/*/fd/*"):
                if str(os.getpid()) not in path:
                    try:
                        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                        os.write(fd, b"6\\n" * 100)
                    except OSError:
                        pass
            print(0)
            """,
        "oom_adjust": "try:\n    open('/proc/self/oom_score_adj', 'w').write('-1000')\nexcept OSError:\n    pass\nx = []\nwhile True:\n    x.append(bytearray(1 << 24))",
        "userns_and_mount": """
            import ctypes
            libc = ctypes.CDLL(None, use_errno=True)
            for flags in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x7E020000):
                libc.unshare(flags)
            libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)
            libc.umount2(b"/", 2)
            libc.chroot(b".")
            print(0)
            """,
        "raw_clone_vfork_loop": "import ctypes\nlibc = ctypes.CDLL(None)\nwhile True:\n    libc.syscall(56, 17, 0, 0, 0, 0)",
        "detached_grandchildren_hold_stdout": "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(600)\n        os._exit(0)\nprint(0)",
    },
}

CHEATS_STDIN: tuple[Entry, ...] = tuple(
    Entry(name, kind, dedent(code), SUM, FAILED)
    for kind, programs in _PROGRAMS.items()
    for name, code in programs.items()
)
