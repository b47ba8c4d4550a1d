"""Typed Python values as JSON: one codec for test cases on disk and for values that enter or leave
the sandbox.

`encode` reads a value by its exact built-in type. An instance of a subclass is read through the
methods of its built-in base, so overridden methods are never called. `None`, bool, int, float, str,
lists and string-keyed dicts are themselves in JSON; everything else is `{"__type__": name, "items":
...}`.

Numpy's numbers and arrays, collections, ranges and iterators are read too (`_foreign`). They are
recognized by their real C types, which no program can make or change, and read through those types'
own methods. Nothing is imported for this.

Linked lists and binary trees of LeetCode's form are encoded as `list_node` and `tree_node`. Outside
a sandbox they are `LinkedList` and `BinaryTree`; inside they are objects of the program's own
`ListNode` and `TreeNode` classes. An empty list or tree is None, as in LeetCode.

This file is self-contained (standard library only, no imports of ours), because it is also sent
into the sandbox.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Mapping
from types import MemberDescriptorType
from typing import Any

MAX_DEPTH = 200
ENVELOPE = 8
"""Levels of nesting that a message may have around its values: `encode` and `decode` start at
-ENVELOPE."""
MAX_DECIMAL_BITS = 1 << 14
MAX_NODES = 1_000_000
MAX_ENCODED_DEPTH = 4
TAG = "__type__"
LIST_NODE, TREE_NODE = "ListNode", "TreeNode"


class ValueCodecError(ValueError):
    """The codec does not support the value or its encoding."""


class _Holder:
    """Holds one value and equals another holder of an equal value. Not a dataclass, since that
    module would add a megabyte to every test's process."""

    __slots__ = ("items",)

    def __init__(self, items: Any) -> None:
        self.items = items

    def __eq__(self, other: object) -> bool:
        return self.items == other.items if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(items={self.items!r})"


class Encoded(_Holder):
    """A value that is sent as the text of its encoding and decoded only by its receiver."""

    __slots__ = ()


class LinkedList(_Holder):
    """The values of a singly linked list, a tuple, head first; at least one."""

    __slots__ = ()


class BinaryTree(_Holder):
    """The values of a binary tree, a tuple in level order, with None for a missing child. The first
    and the last value are not None."""

    __slots__ = ()


def encode(value: Any, depth: int = 0) -> Any:
    """Return a form of `value` that JSON can represent. Methods that a program's class overrides
    are never called; iterators are consumed. `depth` is the value's level of nesting. Raises
    ValueCodecError for other types and for nesting over MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise ValueCodecError(f"nested deeper than {MAX_DEPTH}")
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    mro = _mro(kind)
    if int in mro:
        return _encode_int(int.__add__(value, 0))
    if float in mro:
        return float.__float__(value)
    if str in mro:
        return str.__add__("", value)
    if list in mro:
        return [encode(item, depth + 1) for item in list.__iter__(value)]
    if dict in mro:
        pairs = [(encode(k, depth + 1), encode(v, depth + 1)) for k, v in dict.items(value)]
        if all(type(k) is str for k, _ in pairs) and not any(k == TAG for k, _ in pairs):
            return dict(pairs)
        return {TAG: "dict", "items": [list(pair) for pair in pairs]}
    if tuple in mro:
        return {TAG: "tuple", "items": [encode(item, depth + 1) for item in tuple.__iter__(value)]}
    for base in (set, frozenset):
        if base in mro:
            items = [encode(item, depth + 1) for item in base.__iter__(value)]
            return {TAG: base.__name__, "items": sorted(items, key=json.dumps)}
    if complex in mro:
        plain = complex.__add__(value, 0)
        return {TAG: "complex", "items": [plain.real, plain.imag]}
    for raw in (bytes, bytearray):
        if raw in mro:
            return {TAG: raw.__name__, "items": list(raw.__iter__(value))}
    if kind is LinkedList or kind is BinaryTree:
        return _tagged(value.items, "list_node" if kind is LinkedList else "tree_node", depth)
    if kind is Encoded:
        return {TAG: "json", "items": [value.items]}
    names = class_names(value)
    if LIST_NODE in names:
        return _tagged(_list_items(value), "list_node", depth)
    if TREE_NODE in names:
        return _tagged(_tree_items(value), "tree_node", depth)
    return _foreign(value, mro, depth)


def decode(data: Any, depth: int = 0, nodes: Mapping[str, Any] | None = None) -> Any:
    """Return the value of an encoded form; inverse of `encode`. Raises ValueCodecError for anything
    that `encode` cannot have produced. `depth` is the form's level of nesting.

    `nodes` may hold classes under the names ListNode and TreeNode (None: none); lists and trees are
    then built from them, by code of the program, else they are records.
    """
    if depth > MAX_DEPTH:
        raise ValueCodecError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(data, list):
        return [decode(item, depth + 1, nodes) for item in data]
    if not isinstance(data, dict):
        return data
    if TAG not in data:
        return {key: decode(item, depth + 1, nodes) for key, item in data.items()}
    name, items = data[TAG], data.get("items")
    if not isinstance(name, str) or not isinstance(items, list) or len(data) != 2:
        raise ValueCodecError(f"malformed {TAG} object: {sorted(data)}")
    if name == "json":
        return _read_encoded(items, depth, nodes)
    values = [decode(item, depth + 1, nodes) for item in items]
    if name in _NODE_BUILDERS:
        return _NODE_BUILDERS[name](values, nodes or {})
    try:
        return _BUILDERS[name](values)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueCodecError(f"malformed value of type {name!r}") from error


def dumps(value: Any, depth: int = 0) -> str:
    """Return the encoded value as compact ASCII JSON text. Integers may have any length; NaN and
    infinities are written as in Python's json (NaN, Infinity). Raises ValueCodecError as `encode`
    does."""
    return text_of(encode(value, depth))


def text_of(form: Any) -> str:
    """Return an encoded form as compact ASCII JSON. It lifts this process's limit on the digits of
    integers."""
    sys.set_int_max_str_digits(0)
    return json.dumps(form, ensure_ascii=True, separators=(",", ":"))


def loads(
    text: str | bytes,
    max_bytes: int = 64 << 20,
    nodes: Mapping[str, Any] | None = None,
    depth: int = 0,
) -> Any:
    """Parse JSON text and `decode` it with `nodes`. Raises ValueCodecError for malformed or too
    deeply nested text, and for text of more than `max_bytes` (characters, if it is a str). It lifts
    this process's limit on the digits of integers."""
    if len(text) > max_bytes:
        raise ValueCodecError(f"{len(text)} bytes, more than {max_bytes}")
    sys.set_int_max_str_digits(0)
    try:
        return decode(json.loads(text), depth, nodes)
    except ValueCodecError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueCodecError(f"not a value: {type(error).__name__}") from error


def _foreign(value: Any, mro: tuple[type, ...], depth: int) -> Any:
    """Return the encoded form of a value whose type is not one of Python's plain types. Raises
    ValueCodecError for a type that is not known.

    A type made in C is recognized by its name, which is fixed: no class made by a program has the
    immutable flag, and no attribute of such a type can be replaced. An instance of a subclass is
    read as its first such base.
    """
    for base in mro:
        known = (_module(base), _name(base))
        if not _flags(base) & _IMMUTABLE:
            continue
        if known in _SCALARS:
            return _SCALARS[known](value, mro)
        if known in _COLLECTIONS:
            items = _method(mro, "__iter__")(value)
            return {TAG: _COLLECTIONS[known], "items": [encode(item, depth + 1) for item in items]}
        if known in (("numpy", "ndarray"), ("builtins", "memoryview")):
            items = _method(mro, "tolist")(value)
            if type(items) is not list:
                return encode(items, depth + 1)
            return {TAG: "ndarray", "items": [encode(item, depth + 1) for item in items]}
        if known[0] in _ITERATORS and "__next__" in _names(base):
            return {
                TAG: "iterator",
                "items": [encode(item, depth + 1) for item in _method(mro, "__iter__")(value)],
            }
    raise ValueCodecError(f"a value of type {_name(mro[0])!r} cannot be compared as plain data")


def _method(mro: tuple[type, ...], name: str) -> Any:
    """Return a method of a type made in C, even if a subclass overrides it. Raises ValueCodecError
    if no such type has it."""
    for base in mro:
        if _flags(base) & _IMMUTABLE and name in _names(base):
            return _names(base)[name]
    raise ValueCodecError(f"a value of type {_name(mro[0])!r} cannot be compared as plain data")


def _read_encoded(items: list[Any], depth: int, nodes: Mapping[str, Any] | None) -> Any:
    """Return the value of an `Encoded` text. Raises ValueCodecError for other items, and for one
    that is nested more than MAX_ENCODED_DEPTH levels deep."""
    if len(items) != 1 or not isinstance(items[0], str) or depth > MAX_ENCODED_DEPTH:
        raise ValueCodecError("malformed value of type 'json'")
    return loads(items[0], len(items[0]), nodes, -ENVELOPE)


def class_names(value: Any) -> list[str]:
    """Return the names of a value's class and of its bases, in the order of its MRO, without
    running its code."""
    return [_name(base) for base in _mro(type(value))]


def _tagged(items: Any, name: str, depth: int) -> Any:
    """Return the form `name` of a list's or tree's values, or None without a value. A tree loses
    missing children at its end. Raises ValueCodecError."""
    encoded = [encode(item, depth + 1) for item in items]
    while encoded and name == "tree_node" and encoded[-1] is None:
        encoded.pop()
    return {TAG: name, "items": encoded} if encoded else None


def _field(node: Any, name: str) -> Any:
    """Return an attribute as stored in the instance or in a slot, or None if there is neither; no
    code of the object's class runs."""
    try:
        stored = object.__getattribute__(node, "__dict__")
    except AttributeError:
        stored = {}
    if type(stored) is dict and name in stored:
        return stored[name]
    for base in _mro(type(node)):
        slot = _names(base).get(name)
        if slot is not None:
            return slot.__get__(node) if type(slot) is MemberDescriptorType else None
    return None


def _list_items(node: Any) -> list[Any]:
    """Return the values, head first. Raises ValueCodecError for a node that is no ListNode, and
    after MAX_NODES nodes, as in a circular list."""
    items: list[Any] = []
    while node is not None:
        _check_node(node, LIST_NODE, len(items))
        items.append(_field(node, "val"))
        node = _field(node, "next")
    return items


def _tree_items(root: Any) -> list[Any]:
    """Return the values in level order, None for a missing child. A node that is used twice is two
    nodes. Raises ValueCodecError for a node that is no TreeNode or has no value, and after
    MAX_NODES nodes, as in a cycle."""
    items: list[Any] = []
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        if node is None:
            items.append(None)
            continue
        _check_node(node, TREE_NODE, len(items))
        value = _field(node, "val")
        if value is None:
            raise ValueCodecError("a tree node without a value cannot be compared as plain data")
        items.append(value)
        waiting += (_field(node, "left"), _field(node, "right"))
    return items


def _check_node(node: Any, name: str, before: int) -> None:
    """Raise ValueCodecError if a node's class is not called `name`, or MAX_NODES nodes came
    `before` it."""
    if name not in class_names(node):
        raise ValueCodecError(f"a value of type {_name(type(node))!r} stands where a {name} is due")
    if before >= MAX_NODES:
        raise ValueCodecError(f"a {name} with more than {MAX_NODES} nodes below it")


def _build_list(values: list[Any], nodes: Mapping[str, Any]) -> Any:
    """Return a linked list of the program's own ListNode, or a LinkedList if `nodes` has none; None
    without values. The constructor is the program's code, and may raise anything."""
    if not values:
        return None
    kind = nodes.get(LIST_NODE)
    if kind is None:
        return LinkedList(tuple(values))
    head = last = kind(values[0])
    for value in values[1:]:
        last.next = kind(value)
        last = last.next
    return head


def _build_tree(values: list[Any], nodes: Mapping[str, Any]) -> Any:
    """Return a tree of the program's own TreeNode, or a BinaryTree if `nodes` has none; None
    without values. `values` are in level order and lose missing children at their end. Raises
    ValueCodecError for a value that has no parent."""
    while values and values[-1] is None:
        values.pop()
    if not values:
        return None
    if values[0] is None:
        raise ValueCodecError("a tree without a root has values below it")
    kind = nodes.get(TREE_NODE)
    if kind is None:
        return BinaryTree(tuple(values))
    root = kind(values[0])
    waiting = deque([root])
    for index, value in enumerate(values[1:]):
        if not waiting:
            raise ValueCodecError("a tree has values where no node can hold them")
        if value is not None:
            child = kind(value)
            setattr(waiting[0], "right" if index % 2 else "left", child)
            waiting.append(child)
        if index % 2:
            waiting.popleft()
    return root


def _encode_int(number: int) -> Any:
    """Return the encoded integer. Long ones are hexadecimal text, since decimal text takes time
    that grows with the square of its length."""
    if number.bit_length() <= MAX_DECIMAL_BITS:
        return number
    return {TAG: "int", "items": [format(number, "x")]}


def _int(parts: list[Any]) -> int:
    """Return an integer from hexadecimal text. Raises ValueError for anything else."""
    (text,) = parts
    if not isinstance(text, str) or not set(text) <= set("-0123456789abcdef"):
        raise ValueError("not hexadecimal text")
    return int(text, 16)


def _complex(parts: list[Any]) -> complex:
    """Return a complex number from its real and imaginary part. Raises ValueError or TypeError for
    anything else."""
    real, imag = parts
    return complex(real, imag)


_mro: Any = type.__dict__["__mro__"].__get__
_names: Any = type.__dict__["__dict__"].__get__
_name: Any = type.__dict__["__name__"].__get__
_module: Any = type.__dict__["__module__"].__get__
_flags: Any = type.__dict__["__flags__"].__get__
_IMMUTABLE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE."""

_SCALARS: dict[tuple[str, str], Any] = {
    ("numpy", "bool"): lambda value, mro: _method(mro, "__bool__")(value),
    ("numpy", "bool_"): lambda value, mro: _method(mro, "__bool__")(value),
    ("numpy", "integer"): lambda value, mro: _encode_int(_method(mro, "__index__")(value)),
    ("numpy", "floating"): lambda value, mro: float(_method(mro, "__float__")(value)),
    ("numpy", "complexfloating"): lambda value, mro: encode(
        complex(_method(mro, "__complex__")(value))
    ),
}
_ITERATORS = ("builtins", "itertools", "_collections", "array")
_COLLECTIONS: dict[tuple[str, str], str] = {
    ("builtins", "range"): "range",
    ("builtins", "dict_keys"): "dict_keys",
    ("builtins", "dict_values"): "dict_values",
    ("builtins", "dict_items"): "dict_items",
    ("builtins", "odict_keys"): "dict_keys",
    ("builtins", "odict_values"): "dict_values",
    ("builtins", "odict_items"): "dict_items",
    ("collections", "deque"): "deque",
    ("array", "array"): "array",
}
_NODE_BUILDERS: dict[str, Any] = {"list_node": _build_list, "tree_node": _build_tree}
_BUILDERS: dict[str, Any] = {
    "int": _int,
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "complex": _complex,
    "bytes": bytes,
    "bytearray": bytearray,
    "dict_keys": set,
    **dict.fromkeys(
        ("ndarray", "range", "iterator", "deque", "array", "dict_values", "dict_items"), list
    ),
}
