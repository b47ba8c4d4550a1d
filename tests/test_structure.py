"""The shape of the tree: imports go one way, and nothing below the page knows it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
ALGORITHM, USED_BY_IT = "code_rl.algorithm", {"code_rl.errors", "code_rl.registry"}
RECORDS = {"code_rl.objective", "code_rl.pipeline", "code_rl.trajectory"}
"""Whose types the algorithm names; it imports them for type checkers alone."""
ABOVE_THE_PAGE = ("code_rl.commands.train", "code_rl.replaying", "code_rl.library")


@cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


def imported(name: str, tree: ast.Module, known: set[str], package: bool) -> set[str]:
    """Modules of ours that are imported when `name` is: not in functions, not for type checkers only."""
    found: set[str] = set()

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                parts = name.split(".") if package else name.split(".")[:-1]
                base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
                target = ".".join(filter(None, [base, node.module])) if node.level else node.module or ""
                found.update(
                    f"{target}.{alias.name}" if f"{target}.{alias.name}" in known else target for alias in node.names
                )
            elif isinstance(node, ast.If):
                if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
                    visit(node.body)
                visit(node.orelse)
            elif isinstance(node, ast.Try):
                visit([*node.body, *(each for handler in node.handlers for each in handler.body), *node.orelse])

    visit(tree.body)
    return (found & known) - {name}


@cache
def graph() -> dict[str, set[str]]:
    trees = modules()
    packages = {name for name in trees if any(other.startswith(name + ".") for other in trees)}
    return {name: imported(name, tree, set(trees), name in packages) for name, tree in trees.items()}


def test_no_module_imports_itself_by_way_of_others():
    edges = graph()
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in sorted(edges[name]):
                walk(other, (*path, name))
            done.add(name)

    for name in sorted(edges):
        walk(name, ())


def test_nothing_below_the_page_imports_it():
    importers = {name for name, targets in graph().items() if "code_rl.loop" in targets}
    assert all(name.startswith(ABOVE_THE_PAGE) for name in importers), importers


def test_the_algorithm_knows_records_and_neither_files_nor_processes():
    forbidden = {"asyncio", "os", "pathlib", "socket", "subprocess", "threading"}
    for name, tree in modules().items():
        if name.startswith(ALGORITHM):
            names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            names |= {
                "." * node.level + (node.module or "") for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
            }
            assert not {each.partition(".")[0] for each in names} & {*forbidden, ""}, name
            ours = {each for each in names if each.startswith("code_rl") and not each.startswith(ALGORITHM)}
            assert ours <= USED_BY_IT | RECORDS, name
            assert not graph()[name] & RECORDS, name


def test_a_room_names_what_other_rooms_import_of_it():
    """In the first lines of its `__init__`, the module or the folder it lies in; verbs and the library's front put everything together."""
    trees = modules()
    fronts = ("code_rl.commands", "code_rl.cli", "code_rl.library")
    for room in sorted(
        name for name in trees if name.count(".") == 1 and any(each.startswith(f"{name}.") for each in trees)
    ):
        named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", ast.get_docstring(trees[room]) or ""))))
        for importer, targets in everything_imported().items():
            if importer != "code_rl" and not importer.startswith((*fronts, room)):
                for module in targets:
                    inside = module.removeprefix(f"{room}.").split(".")
                    assert not module.startswith(f"{room}.") or named & set(inside), (room, module, importer)


@cache
def everything_imported() -> dict[str, set[str]]:
    """For each module those of ours that it imports anywhere, in functions and for type checkers too."""
    found = {name: set[str]() for name in modules()}
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found[name] |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return {name: targets & found.keys() for name, targets in found.items()}
