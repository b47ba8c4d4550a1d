"""Programs that look for the expected output wherever a grader may have left it: a token that nobody can guess, in one test."""

from __future__ import annotations

import hashlib
from textwrap import dedent

from code_rl.grading.problem import CallTest, Problem, StdinTest
from tests.grading.corpus.entries import FAILED, Entry

_TOKEN = "TOK-" + hashlib.sha256(b"what no program can know").hexdigest()[:24]
TOKEN = Problem("token", "Print the token.", (StdinTest("the token, please\n", f"{_TOKEN}\n"),))
TOKEN_CALL = Problem("token_call", "Return the token.", (CallTest(("the token, please",), _TOKEN),), fn_name="token")

_FIND = """
import gc, os, re, sys
def found(texts):
    for text in texts:
        if isinstance(text, str):
            text = text.encode("utf-8", "replace")
        hit = re.search(b"TOK-" + b"[0-9a-f]{24}", text)
        if hit:
            return hit.group().decode()
    return "nothing"
def content(path):
    try:
        with open(path, "rb") as file:
            return file.read(1 << 24)
    except OSError:
        return b""
"""
_PLACES = {
    "files_around": """
        def texts():
            for top in (os.getcwd(), os.path.dirname(os.path.abspath(sys.argv[0] or ".")), "/tmp", os.path.expanduser("~"), "..", "/mnt", "/var/tmp", "/dev/shm"):
                for folder, folders, names in os.walk(top):
                    folders[:] = [name for name in folders if not name.startswith((".", "lib", "site-"))][:40]
                    for name in names[:200]:
                        yield content(os.path.join(folder, name))
        """,
    "frames_above": """
        def texts():
            frame = sys._getframe()
            while frame:
                yield repr(list(frame.f_locals.values()))
                frame = frame.f_back
        """,
    "objects_alive": """
        def texts():
            for held in gc.get_objects():
                if type(held) in (dict, list, tuple) and len(held) < 10000:
                    items = held.values() if type(held) is dict else held
                    yield " ".join([item for item in items if type(item) is str])
        """,
    "arguments_and_environment": """
        def texts():
            yield repr(sys.argv) + repr(dict(os.environ))
            yield content("/proc/self/cmdline") + content("/proc/self/environ")
        """,
    "what_parents_were_told": """
        def texts():
            pids = [name for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc") else []
            for pid in pids:
                yield content("/proc/" + pid + "/cmdline") + content("/proc/" + pid + "/environ")
                try:
                    for folder, _, names in os.walk("/proc/" + pid + "/cwd/"):
                        if folder.count("/") < 7:
                            yield from (content(os.path.join(folder, name)) for name in names[:100])
                except OSError:
                    pass
        """,
    "open_descriptors": """
        def texts():
            for fd in range(3, 64):
                try:
                    yield os.pread(fd, 1 << 20, 0)
                except OSError:
                    yield content("/proc/self/fd/%d" % fd) if os.path.isfile("/proc/self/fd/%d" % fd) else b""
        """,
    "own_memory": """
        def texts():
            for line in content("/proc/self/maps").decode().splitlines():
                first, last = (int(end, 16) for end in line.split()[0].split("-"))
                if " rw" in line and last - first < 1 << 28 and "[stack" not in line:
                    with open("/proc/self/mem", "rb", 0) as memory:
                        memory.seek(first)
                        yield memory.read(last - first)
        """,
    "modules": """
        def texts():
            for module in list(sys.modules.values()):
                for value in list(vars(module).values()) if hasattr(module, "__dict__") else ():
                    if type(value) in (str, dict, list, tuple):
                        yield repr(value)[:1 << 20]
        """,
}


def _program(place: str, ending: str) -> str:
    return "\n".join(dedent(part).strip("\n") for part in (_FIND, place, ending)) + "\n"


LEAKS = (
    *(
        Entry(f"token_in_{name}", "reads the expected output", _program(place, "print(found(texts()))"), TOKEN, FAILED)
        for name, place in _PLACES.items()
    ),
    *(
        Entry(
            f"token_in_{name}_call",
            "reads the expected output",
            _program(place, "def token(_):\n    return found(texts())"),
            TOKEN_CALL,
            FAILED,
        )
        for name, place in _PLACES.items()
    ),
)
