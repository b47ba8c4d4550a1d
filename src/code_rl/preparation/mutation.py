"""A seeded mutator: wrong (mostly) versions of a right program, one small change each."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from typing import Any

Undo = Callable[[], None]
Change = Callable[[], Undo]
"""Changes the tree in one place; what it returns takes the change back."""

COMPARE_SWAPS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE), ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
BINARY_SWAPS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult), ast.Sub: (ast.Add,), ast.Mult: (ast.Add, ast.FloorDiv), ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div, ast.Mult), ast.Mod: (ast.FloorDiv, ast.Add), ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,), ast.BitXor: (ast.BitOr,), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,),
}  # fmt: skip
NAME_SWAPS = {
    "min": "max", "max": "min", "any": "all", "all": "any", "sum": "max", "sorted": "list", "abs": "int", "set": "list",
}  # fmt: skip
METHOD_SWAPS = {
    "append": "extend", "upper": "lower", "lower": "upper", "strip": "lstrip", "startswith": "endswith", "isdigit": "isalpha",
}  # fmt: skip


def mutants(source: str, count: int, seed: str) -> list[str]:
    """Up to `count` different mutants of `source`, in an order that `seed` decides. Raises SyntaxError for what does not parse."""
    tree = ast.parse(source)
    original = ast.unparse(tree)
    found: dict[str, None] = {}
    changes = list(_changes(tree))
    for change in random.Random(seed).sample(changes, len(changes)):
        if len(found) == count:
            break
        undo = change()
        text = ast.unparse(tree)
        undo()
        if text != original:
            found[text] = None
    return list(found)


def _changes(tree: ast.Module) -> Iterator[Change]:
    for parent in ast.walk(tree):
        yield from _own_changes(parent)
        for name, value in ast.iter_fields(parent):
            if isinstance(value, ast.expr):
                for new in _replacements(value, parent):
                    yield _setter(parent, name, new)
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, ast.expr):
                        for new in _replacements(item, parent):
                            yield _item_setter(value, index, new)
                    elif _can_go(item):
                        yield _item_setter(value, index, ast.Pass())


def _can_go(item: object) -> bool:
    """Statements that may be dropped; a docstring is none of them."""
    if isinstance(item, ast.Expr):
        return not isinstance(item.value, ast.Constant)
    return isinstance(item, ast.Assign | ast.AugAssign | ast.Break | ast.If | ast.Continue)


def _setter(node: ast.AST, name: str, new: object) -> Change:
    def change() -> Undo:
        old = getattr(node, name)
        setattr(node, name, new)
        return lambda: setattr(node, name, old)

    return change


def _item_setter(items: list[Any], index: int, new: ast.AST) -> Change:
    def change() -> Undo:
        old = items[index]
        items[index] = new
        return lambda: items.__setitem__(index, old)

    return change


def _own_changes(node: ast.AST) -> Iterator[Change]:
    """Changes of a node in place: operators, names, bounds of slices, the value of a return."""
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            yield from (_item_setter(node.ops, index, swap()) for swap in COMPARE_SWAPS[type(op)])
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        for swap in BINARY_SWAPS.get(type(node.op), ()):
            yield _setter(node, "op", swap())
    elif isinstance(node, ast.BoolOp):
        yield _setter(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.Slice):
        for name in ("lower", "upper"):
            bound = getattr(node, name)
            yield _setter(node, name, ast.BinOp(bound, ast.Add(), ast.Constant(1)) if bound else ast.Constant(1))
    elif isinstance(node, ast.Name) and node.id in NAME_SWAPS and isinstance(node.ctx, ast.Load):
        yield _setter(node, "id", NAME_SWAPS[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in METHOD_SWAPS:
        yield _setter(node, "attr", METHOD_SWAPS[node.attr])
    elif isinstance(node, ast.Return) and node.value is not None:
        yield from (_setter(node, "value", new) for new in _returns(node.value))


def _returns(value: ast.expr) -> Iterator[ast.expr]:
    yield ast.Constant(None)
    yield ast.List([value], ast.Load())
    if isinstance(value, ast.List | ast.ListComp):
        yield _call("tuple", value)
    if isinstance(value, ast.Tuple):
        yield _call("list", value)
    if isinstance(value, ast.Compare | ast.BoolOp):
        yield ast.UnaryOp(ast.Not(), value)


def _call(name: str, value: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [value], [])


def _replacements(node: ast.expr, parent: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Constant) and not isinstance(parent, ast.Expr | ast.JoinedStr | ast.FormattedValue):
        yield from (ast.Constant(value) for value in _constants(node.value))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    if isinstance(parent, ast.If | ast.While | ast.IfExp) and node is parent.test:
        yield ast.UnaryOp(ast.Not(), node)


def _constants(value: object) -> Iterator[bool | int | float | str]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, float):
        yield from (value + 1.0, -value)
    elif isinstance(value, str):
        yield from (value + "x", value[:-1])
