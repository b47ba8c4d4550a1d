"""Which of several programs for one task have ideas of their own, as far as their text tells.

What a program does is counted, not how it is spelled: names of its own, the order of its statements, how it reads, prints, indexes and collects say nothing; a loop is
a loop, be it a statement, a comprehension, or a call of `map`; a comparison is the same from both sides. Programs whose counts are nearly the same are one idea.
This cannot see that two programs with different counts are one idea all the same (a formula in another form, code that never runs), nor that one author wrote both.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterable, Iterator

from code_rl.problems import syntax

ALIKE = 0.9
"""Programs that share more of what they do are one idea."""
_SAID_OTHERWISE = {
    ast.For: "loop", ast.AsyncFor: "loop", ast.While: "loop", ast.comprehension: "loop", ast.If: "if", ast.IfExp: "if",
    ast.Lt: "order", ast.Gt: "order", ast.LtE: "order", ast.GtE: "order", ast.Eq: "equal", ast.NotEq: "equal", ast.In: "in", ast.NotIn: "in",
    ast.And: "both", ast.Or: "both", ast.Dict: "dict", ast.DictComp: "dict", ast.Set: "set", ast.SetComp: "set", ast.Slice: "slice",
    ast.Try: "try", ast.Yield: "yield", "map": "loop", "filter": "loop", "defaultdict": "dict", "OrderedDict": "dict", "frozenset": "set",
}  # fmt: skip
_READING = """input print open sys stdin stdout read readline readlines buffer write flush split rsplit splitlines strip rstrip lstrip join int str list tuple
range len enumerate zip iter next append extend add copy format typing List Dict Tuple Set Optional Any Union Solution self"""
_PLUMBING = frozenset(_READING.split())
_TRIVIAL = (None, True, False, 0, 1, -1, "", " ", "\n", Ellipsis)


def independent(programs: Iterable[str]) -> list[str]:
    """Those that share no idea with one before; what does not parse is left out."""
    found: list[tuple[str, Counter[str]]] = []
    for code in programs:
        counts = idea(code)
        if counts is not None and all(likeness(counts, other) <= ALIKE for _, other in found):
            found.append((code, counts))
    return [code for code, _ in found]


def likeness(one: Counter[str], other: Counter[str]) -> float:
    """What two programs share of all that they do, 0 to 1."""
    return (one & other).total() / ((one | other).total() or 1) if one or other else 1.0


def idea(source: str) -> Counter[str] | None:
    """What a program does, counted; None for what does not parse."""
    try:
        tree = syntax.parse(source)
    except SyntaxError:
        return None
    return Counter(_steps(tree)) - Counter(_counting(tree))


def _steps(tree: ast.Module) -> Iterator[str]:
    own, known = set[str](), set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
            if any(node.name in (getattr(each, "id", None), getattr(each, "attr", None)) for each in ast.walk(node)):
                yield "recursion"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            known |= {name.asname or name.name for name in node.names}
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            own.add(node.attr)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            step = node.id if isinstance(node.ctx, ast.Load) and node.id in known - own else ""
        elif isinstance(node, ast.Attribute):
            step = "" if node.attr in own else node.attr
        elif isinstance(node, ast.Constant):
            step = "" if node.value in _TRIVIAL else repr(node.value)
        else:
            step = type(node).__name__ if isinstance(node, ast.operator) else _SAID_OTHERWISE.get(type(node), "")
        for each in (step, *["if"] * (step == "filter" or len(getattr(node, "ifs", ())))):
            if each and each not in _PLUMBING:
                yield _SAID_OTHERWISE.get(each, each)


def _counting(tree: ast.Module) -> Iterator[str]:
    """Steps that are but another spelling: the bound in the head of a `while`, adding one, adding a list to what is collected."""
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and isinstance(node.test, ast.Compare):
            yield _SAID_OTHERWISE.get(type(node.test.ops[0]), "")
        elif isinstance(node, ast.AugAssign | ast.BinOp) and isinstance(node.op, ast.Add):
            added = [node.value] if isinstance(node, ast.AugAssign) else [node.left, node.right]
            if any(
                isinstance(each, ast.List) or (isinstance(each, ast.Constant) and each.value == 1) for each in added
            ):
                yield "Add"
