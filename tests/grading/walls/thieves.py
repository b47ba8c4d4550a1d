"""Thieves: programs that solve nothing, and look for a right program or for expected outputs in bytes that they were not given.

Every walk of `walks` serves twice: after a right program of another submission (`THIEVES`), and after what a checker was asked (`CHECKER_THIEVES`).
"""

from __future__ import annotations

import hashlib

from code_rl.grading.problem import CallTest, Compare, Problem, StdinTest
from tests.grading.walls.programs import PASSED, UNPAID, Entry, source
from tests.grading.walls.walks import WALKER, WALKS

_ANY_PROGRAM = """
    def stolen(found, head):
        import io
        steal = rb"(?:" + head + rb")[ -~\\t\\n]{60,4000}"
        for match in re.finditer(steal, found):
            whole = match.group().decode()
            # As it stands, or quoted as in JSON.
            for text in (whole, whole.partition('"')[0].replace("\\\\n", "\\n")):
                for cut in range(12):
                    try:
                        yield compile(text[: len(text) - cut], "stolen", "exec"), text
                        break
                    except (SyntaxError, ValueError):
                        pass
    """

_STDIN_THIEF = """
    def main():
        given = sys.stdin.read()
        import io
        real = sys.stdout
        for blob in blobs():
            for code, text in stolen(blob, b"import s" + b"ys"):
                if "st" + "olen" in text or "pri" + "nt(" not in text:
                    continue
                sys.stdin, sys.stdout = io.StringIO(given), io.StringIO()
                try:
                    exec(code, {"__name__": "__main__"})
                    answer = sys.stdout.getvalue()
                except BaseException:
                    answer = ""
                finally:
                    sys.stdout = real
                if answer.strip().isdigit():
                    print(answer, flush=True)
                    os._exit(0)
        print("nothing", flush=True)
        os._exit(0)
    main()
    """

_CALL_THIEF = """
    def price(items):
        for blob in blobs():
            for code, text in stolen(blob, b"de" + b"f price"):
                if "st" + "olen" in text:
                    continue
                names = {}
                try:
                    exec(code, names)
                    return names["price"](items)
                except BaseException:
                    pass
        return 0
    """

_TOKEN_THIEF = """
    def main():
        given = sys.stdin.read().split()[-1].encode()
        token = re.compile(b"TOK" + b"-[0-9a-f]{24}")
        for blob in blobs():
            for match in re.finditer(re.escape(given), blob):
                near = token.search(blob, match.end(), match.end() + 200)
                if near:
                    print(near.group().decode(), ". " * 20000, flush=True)
                    os._exit(0)
        print("TOK" + "-nothing", ". " * 20000, flush=True)
        os._exit(0)
    main()
    """

_LISTS = ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9])


def _price(items: list[int]) -> int:
    total = 7
    for place, item in enumerate(items, 1):
        total = (total * 31 + place * item * item) % 1000003
    return total


PRICE = Problem("price", "price", tuple(StdinTest(f"{' '.join(map(str, i))}\n", f"{_price(i)}\n") for i in _LISTS[:2]))
PRICE_CALL = Problem("price_call", "price", tuple(CallTest((i,), _price(i)) for i in _LISTS[:2]), fn_name="price")

_LOOP = "total = 7\n    for place, item in enumerate(items, 1):\n        total = (total * 31 + place * item * item) % 1000003\n"
_NOTE = "# Fold the items into one number, place by place, and keep it below the prime.\n"
RIGHT = (
    f"{_NOTE}import sys\ndef price(items):\n    {_LOOP}    return total\nprint(price(list(map(int, sys.stdin.read().split()))))\n",
    f"{_NOTE}import sys\ndef main():\n    items = [int(word) for word in sys.stdin.readline().split()]\n    {_LOOP}    print(total)\nmain()\n",
    f"{_NOTE}import sys\nitems = list(map(int, input().split()))\nif True:\n    {_LOOP}print(total)\n",
)
RIGHT_CALL = (
    f"{_NOTE}def price(items):\n    {_LOOP}    return total\n",
    f"{_NOTE}def price(items: list) -> int:\n    {_LOOP}    return int(total)\n",
)

_IDS = [hashlib.sha256(f"id {n}".encode()).hexdigest()[:20] for n in range(1)]
_TOKENS = [hashlib.sha256(f"token {n}".encode()).hexdigest()[:24] for n in range(1)]
_NUMBERS = "".join(f"{n * n} {n**3 % 1009}\n" for n in range(30))
_CHECKER = """
import json, sys
asked = json.loads(sys.stdin.read())
print("ok" if asked["output"].split()[:1] == asked["expected"].split() else "wrong: another token")
"""
TOKENS = Problem(
    "tokens",
    "tokens",
    tuple(StdinTest(f"{_NUMBERS}ID-{given}\n", f"TOK-{token}\n") for given, token in zip(_IDS, _TOKENS, strict=True)),
    compare=Compare("checker", checker=_CHECKER),
)
RIGHT_TOKENS = (
    f"import hashlib\nkeys = {dict(zip((hashlib.md5(('ID-' + i).encode()).hexdigest() for i in _IDS), (t[::-1] for t in _TOKENS), strict=True))!r}\n"
    "print('TOK-' + keys[hashlib.md5(open(0).read().split()[-1].encode()).hexdigest()][::-1], '. ' * 20000)\n"
)
"""It holds the tokens backwards, so that only a checker's question shows them; long answers make long questions, of which more is left behind."""

QUICK = (
    "maps_string_at",
    "sweep_write",
    "near_objects",
    "fresh_bytes",
    "fresh_objects",
    "collector",
    "descriptors",
    "files",
)

THIEVES = (
    *(
        Entry(name, tries, source(WALKER, body, _ANY_PROGRAM, _STDIN_THIEF), PRICE, UNPAID, quick=name in QUICK)
        for name, (tries, body) in WALKS.items()
    ),
    *(
        Entry(f"{name}_call", tries, source(WALKER, body, _ANY_PROGRAM, _CALL_THIEF), PRICE_CALL, UNPAID)
        for name, (tries, body) in WALKS.items()
        if name != "descriptors"
    ),
)
CHECKER_THIEVES = tuple(
    Entry(f"{name}_token", tries, source(WALKER, body, _TOKEN_THIEF), TOKENS, UNPAID, quick=name in QUICK)
    for name, (tries, body) in WALKS.items()
)

OWNERS = (
    *(Entry(f"right_{n}", "solves the problem", code, PRICE, PASSED) for n, code in enumerate(RIGHT)),
    *(Entry(f"right_call_{n}", "solves the problem", code, PRICE_CALL, PASSED) for n, code in enumerate(RIGHT_CALL)),
)
ASKED = (Entry("right_tokens", "solves the problem", RIGHT_TOKENS, TOKENS, PASSED),)
"""Honest programs that go before the thieves in the same sandbox."""
