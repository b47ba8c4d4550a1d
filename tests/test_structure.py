"""The shape of the tree: imports go one way, by the order in CONTRIBUTING.md, and rooms say what others import of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent.parent
When = Literal["import", "call", "types"]
"""When an import is carried out: with its module, when a function is called, never (it is for type checkers alone)."""
ALGORITHM, USED_BY_IT = "code_rl.training.algorithm", {"code_rl.util.errors", "code_rl.util.registry"}
UPWARD = {
    ("code_rl.training.algorithm.datums", "code_rl.policy.trajectory"),
    ("code_rl.training.algorithm.metrics", "code_rl.training.objective"),
    ("code_rl.training.algorithm.metrics", "code_rl.training.pipeline"),
    ("code_rl.training.algorithm.shaping", "code_rl.policy.trajectory"),
    ("code_rl.training.runs.recorder", "code_rl.training.choice"),
}
"""Who names, for type checkers alone, records of a part above its own: the algorithm those it is a function of, the recorder what a batch is told by."""
ABOVE_THE_PAGE = ("code_rl.cli.train",)


@cache
def modules() -> dict[str, tuple[ast.Module, bool]]:
    """By name: its source, and whether it is that of a folder."""
    found = {}
    for path in (ROOT / "src").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text()), path.stem == "__init__"
    return found


@cache
def imports(name: str) -> set[tuple[str, When]]:
    """The modules of ours that a module imports, or names in a text (`module` or `module:object`), and when. All may ask for `__version__`."""
    tree, folder = modules()[name]
    parts = name.split(".")

    def named(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parts[: len(parts) - node.level + folder] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield inner if inner in modules() or inner == "code_rl.__version__" else source
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            yield node.value.partition(":")[0]

    def visit(node: ast.AST, when: When) -> Iterator[tuple[str, When]]:
        told: When = (
            "call" if isinstance(node, ast.Constant) and when == "import" else when
        )  # a text imports nothing yet
        yield from ((other, told) for other in named(node) if other in modules())
        if when == "import" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            when = "call"
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, "types" if for_types and field == "body" else when)

    return {(other, when) for other, when in visit(tree, "import") if other != name}


def part(name: str) -> str:
    """The room or the file at the top that a module belongs to; `code_rl` is the front, which shows names of all."""
    return name.split(".")[1] if "." in name else name


def order() -> list[list[str]]:
    """The parts of the tree, those that import from one side and those that are imported on the other; parts of one place do not know each other."""
    (line,) = re.findall(r"^Imports go one way[^`]*`([^`]+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    return [place.split(", ") for place in line.split(" → ")]


def test_every_part_has_one_place_in_the_order():
    assert sorted(name for names in order() for name in names) == sorted({part(name) for name in modules()})


def test_imports_go_down_the_order():
    places = {name: place for place, names in enumerate(order()) for name in names}
    upward = {
        (name, other, when)
        for name in modules()
        for other, when in imports(name)
        if part(name) != part(other) and places[part(name)] >= places[part(other)]
    }
    assert upward == {(name, other, "types") for name, other in UPWARD}


def test_no_module_imports_itself_by_way_of_others():
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in sorted(other for other, when in imports(name) if when == "import"):
                walk(other, (*path, name))
            done.add(name)

    for name in sorted(modules()):
        walk(name, ())


def test_the_page_is_imported_by_the_verb_alone():
    importers = {name for name in modules() if "code_rl.loop" in {other for other, _ in imports(name)}}
    assert all(name.startswith(ABOVE_THE_PAGE) for name in importers), importers


def test_the_front_imports_nothing_until_it_is_asked():
    assert not {other for other, when in imports("code_rl") if when != "types"}


def test_the_algorithm_knows_records_and_neither_files_nor_processes():
    forbidden = {"asyncio", "os", "pathlib", "socket", "subprocess", "threading"}
    for name, (tree, _) in modules().items():
        if name.startswith(ALGORITHM):
            for node in ast.walk(tree):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                    assert not {each.partition(".")[0] for each in names} & forbidden, name
            ours = {other for other, _ in imports(name) if not other.startswith(ALGORITHM)}
            assert all(other in USED_BY_IT or (name, other) in UPWARD for other in ours), name


def test_a_room_names_what_others_import_of_it():
    """In the first lines of its `__init__`, each module or folder in it that is imported from outside; not what the front and the table of verbs show."""
    unnamed = set()
    for room in (name for name, (_, folder) in modules().items() if folder and name != "code_rl"):
        named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", ast.get_docstring(modules()[room][0]) or ""))))
        for importer in modules().keys() - {"code_rl", "code_rl.cli.main"}:
            if not f"{importer}.".startswith(f"{room}."):
                taken = {other for other, _ in imports(importer) if other.startswith(f"{room}.")}
                inside = {other.removeprefix(f"{room}.").partition(".")[0] for other in taken}
                unnamed |= {(room, each, importer) for each in inside - named}
    assert not unnamed
