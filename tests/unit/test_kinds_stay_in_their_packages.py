"""Only `tables/registry.py` and the package of a kind name the kind; all other code uses a `Kind`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.tables.registry import KINDS

SOURCE = Path(__file__).parents[2] / "src"
REGISTRY = "penstock.tables.registry"
PACKAGES = {
    name: type(kind).__module__.rpartition(".")[0] for name, kind in ((kind.name, kind) for kind in KINDS.all())
}

NOT_THE_KIND = {
    "penstock.spark.jars": "the jars of the Delta format",
}
"""Modules in which the name has another meaning, as the format in `spark.read.format("delta")`."""


def modules() -> Iterator[tuple[str, Path]]:
    """Every module outside the packages of kinds and the registry."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if name != REGISTRY and not any(f"{name}.".startswith(f"{package}.") for package in PACKAGES.values()):
            yield name, path


def namings(tree: ast.Module) -> Iterator[str]:
    """Every line of a module that imports the package of a kind, or names a kind in code or in a text for people."""
    formats = {id(name) for node in ast.walk(tree) for name in _format_arguments(node)}
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in formats or id(node) in docstrings:
            continue
        for name in _names(node):
            for kind, package in PACKAGES.items():
                if name == kind or f"{name}.".startswith(f"{package}.") or re.search(rf"\btable\.{kind}\b", name):
                    yield f"{getattr(node, 'lineno', '?')}: {name}"


def _format_arguments(node: ast.AST) -> list[ast.expr]:
    """The arguments of `format`, which are the format of a table."""
    match node:
        case ast.Call(func=ast.Attribute(attr="format"), args=args):
            return args
        case _:
            return []


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Constant(value=str() as text):
            return [text]
        case ast.Import(names=names):
            return [item.name for item in names]
        case ast.ImportFrom(module=str() as module, names=names):
            return [module, *(f"{module}.{item.name}" for item in names)]
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str() as name):
            return [name]
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return [name]
        case _:
            return []


@pytest.mark.parametrize(("module", "path"), [pytest.param(*item, id=item[0]) for item in modules()])
def test_no_module_outside_its_package_names_a_kind(module: str, path: Path) -> None:
    result = [] if module in NOT_THE_KIND else list(namings(ast.parse(path.read_text(encoding="utf-8"))))
    assert result == []


@pytest.mark.parametrize(
    "text",
    [
        "from penstock.tables.export.spec import ExportSpec",
        "from penstock.tables import export",
        "import penstock.tables.delta.kind",
        "if job.table.kind == 'export': pass",
        "section = file.table.delta",
        "open(export=True)",
        "def compact(export): pass",
        "hint = f'change table.delta.path of {job}'",
    ],
)
def test_a_module_that_names_a_kind_is_found(text: str) -> None:
    assert list(namings(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "rows = spark.read.format('delta').load(path)",
        "from penstock.lake.delta.table import Table",
        '"""How table.delta came to be."""',
        "import deltalake",
        "kind_of(job).steps",
    ],
)
def test_delta_format_and_library_are_not_kinds(text: str) -> None:
    assert not list(namings(ast.parse(text)))
