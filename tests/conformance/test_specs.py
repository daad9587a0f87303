"""OpSpecs from outside, and the suite by the name of its package, in a folder that is no clone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import forked_python
import pytest

from conformance import pytest_plugin
from conformance import spec as specs

SPECS = """
import torch

from conformance import bounds
from conformance.cases import Case
from conformance.ops import _elementwise as elementwise
from conformance.spec import Expected, OpSpec
from strategies import tensors


def twice(input):
    return torch.mul(input, 2)


def cases(dtypes):
    return tensors.tensors(elementwise.shapes_of_results(), dtypes).map(lambda x: Case(op="twice", args=(x,)))


def refused(dtypes):
    return tensors.tensors((3,), dtypes).map(lambda x: Case(op="twice", args=("x",)))


def expected(call):
    return elementwise.exactly(call, call.args[0] * 2)


TWICE = OpSpec(name="twice", reference=twice, cases=cases, refused=refused, dtypes=("float32",), expected=expected)
"""
KERNELS = """
import torch


def twice(input):
    if not isinstance(input, torch.Tensor):
        raise TypeError("twice() takes a tensor")
    return input + input


class Wrong:
    @staticmethod
    def twice(input):
        return twice(input).mul(2)
"""


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "own_specs.py").write_text(SPECS)
    (tmp_path / "own_kernels.py").write_text(KERNELS)
    return tmp_path


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked_python.run([sys.executable, *arguments], cwd=folder, timeout=120)


def test_an_op_from_outside_is_judged_saved_and_reproduced(project):
    options = ("--specs", "own_specs", "--op", "twice", "--max-examples", "4", "--hypothesis-seed", "1")
    run = ("-m", "conformance", "run", "-p", "no:cacheprovider", *options)
    wrong = python(project, *run, "--implementation", "own_kernels.py:Wrong", "-k", "legal")
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    case = min((project / "failures").glob("twice-*.json"))
    command = f"reproduce {case.relative_to(project)} --implementation own_kernels.py:Wrong --specs own_specs"
    assert f"python -m conformance {command}" in wrong.stdout
    again = python(project, "-m", "conformance", *command.split())
    assert again.returncode == 1
    assert "values failed" in again.stdout
    script = python(project, f"failures/repro_{case.stem}.py")
    assert script.returncode == 1
    assert "values" in script.stdout


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("raise RuntimeError('no')", "importing it failed: RuntimeError: no"),
        ("x = 1", "it has no OpSpec"),
        ("CONFORMANCE_API = 99", "version 99"),
        ("from conformance.ops import add\nimport dataclasses\nX = dataclasses.replace(add.SPEC)", "'add' already"),
    ],
)
def test_a_module_that_cannot_be_used_is_refused(tmp_path, monkeypatch, text, complaint):
    file = tmp_path / f"bad_specs_{abs(hash(text))}.py"
    file.write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(specs.SpecError, match=complaint):
        specs.bring([str(file)])
    assert str(file) not in specs.brought()


def test_the_plugin_leaves_other_projects_alone(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--op', help='of this project')\n"
    )
    (tmp_path / "test_own.py").write_text(
        "import sys\n\ndef test_own(pytestconfig):\n"
        "    assert pytestconfig.getoption('--op') == 'x'\n    assert 'conformance.spec' not in sys.modules\n"
    )
    plugin = ("-p", pytest_plugin.__name__, "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "--op", "x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
