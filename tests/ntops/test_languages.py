"""``docs/kernels.md`` says of each kernel what it is written in, as its imports do."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ntops
from ntops.host import families

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "kernels.md").read_text()
NEVER = re.compile(r"So (.*?) of `ntops.torch` never run.*?So is that of (.*?), which", re.DOTALL)


def imported(path: Path) -> set[str]:
    """The modules that a file imports at its top."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return found


def language(path: Path) -> str:
    modules = imported(path)
    if any(name.startswith("triton.experimental.gluon") for name in modules):
        return "Gluon"
    return "Triton" if "triton" in modules else "NineToothed"


def named(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_the_table_says_what_each_file_is_written_in():
    rows = re.findall(r"^\| `(\w+)\.py` \| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)
    files = {path.stem: language(path) for path in (ROOT / "ntops" / "kernels").glob("*.py")}
    assert {name: written for name, written, _ in rows} == {k: v for k, v in files.items() if v != "NineToothed"}
    assert set().union(*(named(users) for *_, users in rows)) <= set(ntops.torch.OPERATORS)
    assert all(language(ROOT / "ntops" / "kernels" / f"{op}.py") == "NineToothed" for op in ntops.torch.OPERATORS)


@pytest.mark.parametrize("op", ntops.torch.OPERATORS)
def test_operators_that_run_no_kernel_in_ninetoothed_are_named(op):
    never = NEVER.search(PAGE)
    assert never
    uses = re.compile(rf"\b{op}\.premake|from ntops\.kernels\.{op} import .*\bpremake\b")
    sources = (path.read_text() for folder in ("torch", "host") for path in (ROOT / "ntops" / folder).glob("*.py"))
    is_run = op in families.MEMBERS or any(map(uses.search, sources))
    assert is_run == (op not in named(never[1]) | named(never[2]))


def test_what_is_in_gluon_is_imported_by_the_calls_that_run_it():
    code = "import sys, ntops.torch; print(*(name for name in sys.modules if name.startswith('ntops.kernels.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    files = (ROOT / "ntops" / "kernels").glob("*.py")
    gluon = {f"ntops.kernels.{path.stem}" for path in files if language(path) == "Gluon"}
    imported = set(done.stdout.split())
    assert "ntops.kernels.mm" in imported
    assert gluon
    assert not gluon & imported
