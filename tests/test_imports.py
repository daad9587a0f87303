"""Imports point one way, and no files import each other in a circle."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ntops", "strategies", "conformance", "reports")
LAYERS = {
    "ntops.interpreter": set(),
    "ntops.kernels": set(),
    "ntops.launch": {"ntops.interpreter", "ntops.kernels"},
    "ntops.host": {"ntops.kernels", "ntops.launch"},
    "ntops.autograd": {"ntops.host", "ntops.kernels", "ntops.launch"},
    "ntops.torch": {"ntops.host", "ntops.kernels", "ntops.launch", "ntops.modules"},
    "ntops.modules": {"ntops.host", "ntops.kernels", "ntops.torch"},
    "strategies": set(),
    "reports": {"conformance", "strategies"},
}
"""Which folders the files of a folder may import, beside their own and single files of ``ntops``. ``ntops.library`` and
``ntops.aten`` are above the rest of ntops, and the self-test of ``conformance`` plants defects in it."""


def _imports(module, path, modules):
    """The modules that a file imports, at its top or inside of functions, but not for type checkers alone."""
    tree = ast.parse(path.read_text())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    unseen = {one for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for one in ast.walk(block)}

    for node in (node for node in ast.walk(tree) if node not in unseen):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue

        for name in names:
            while name and name not in modules:
                name = name.rpartition(".")[0]

            if name and name != module:
                yield name


@pytest.fixture(scope="module")
def graph():
    modules = {}

    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = path

    return {module: set(_imports(module, path, modules)) for module, path in modules.items()}


def test_no_files_are_in_a_circle(graph):
    graphlib.TopologicalSorter(graph).prepare()


def _folder(module):
    return next((folder for folder in LAYERS if f"{module}.".startswith(f"{folder}.")), None)


def test_folders_import_only_what_is_below_them(graph):
    wrong = [
        f"{module} imports {other}"
        for module, imported in graph.items()
        for other in imported
        if (folder := _folder(module)) and (below := _folder(other)) and below != folder and below not in LAYERS[folder]
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("package", "above"), [("ntops", ("strategies", "conformance", "reports")), ("conformance", ("reports",))]
)
def test_packages_know_nothing_of_those_above_them(graph, package, above):
    assert not [
        f"{module} imports {other}"
        for module, imported in graph.items()
        for other in imported
        if module.partition(".")[0] == package and other.partition(".")[0] in above
    ]
