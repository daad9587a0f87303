"""docs/in-your-ci.md, followed in an empty folder: a package of somebody else's, with names of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = re.compile(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs" / "in-your-ci.md").read_text()


@pytest.fixture
def project(tmp_path) -> Path:
    for name, text in FILE.findall(PAGE):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # A project may have a module that is called as a package of the harness is.
    (tmp_path / "strategies.py").write_text('NAME = "own"\n')
    return tmp_path


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)


def suite(folder: Path) -> subprocess.CompletedProcess[str]:
    """As the session of the page's noxfile.py runs it, with few calls."""
    (judged,) = re.findall(r"judged = \((.*)\)", (folder / "noxfile.py").read_text())
    options = [part.strip().strip('"') for part in judged.split(",")]
    few = ("--max-examples", "3", "--hypothesis-seed", "0", "-k", "legal or refused", "-p", "no:cacheprovider")
    return python(folder, "-m", "conformance", "run", *options, *few)


@pytest.mark.slow
def test_the_package_of_the_page_passes_and_a_mistake_does_not(project):
    one_line = ("-m", "pytest", "-q", "tests", "-p", "no:cacheprovider")
    right = (python(project, *one_line), suite(project))
    for done in right:
        assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in right[1].stdout

    kernels = project / "acme" / "kernels.py"
    text = kernels.read_text()
    kernels.write_text(text.replace("/ columns + eps", "/ BLOCK + eps").replace("b / (1 +", "b / (2 +"))
    wrong = python(project, *one_line)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert "values failed" in wrong.stdout
    assert "saved failures/" in wrong.stdout


def test_the_workflow_runs_what_there_is():
    files = dict(FILE.findall(PAGE))
    workflow = files[".github/workflows/conformance.yml"]
    sessions = set(re.findall(r"^def (\w+)\(session\)", files["noxfile.py"], re.MULTILINE))
    assert set(re.findall(r"nox -s (\w+)", workflow)) == sessions
    assert "--implementation acme.kernels" in workflow
