"""Definitions of FlashInfer Trace are judged like operators that were described by hand."""

from __future__ import annotations

import json
import os
import sys

import forked_python
import pytest
import torch

from conformance import judge
from conformance.authoring import ArgumentError
from conformance.flashinfer_trace import definition
from conformance.one_line import Judgement

REFERENCE = """
import torch

@torch.no_grad()
def run(x, weight, eps):
    assert x.shape[1] == 48
    wide = x.to(torch.float32)
    return (wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps) * weight.to(torch.float32)).to(x.dtype)
"""
NORM = {
    "name": "rmsnorm_h48",
    "op_type": "rmsnorm",
    "tags": ["stage:any"],
    "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": 48}},
    "inputs": {
        "x": {"shape": ["rows", "hidden"], "dtype": "bfloat16"},
        "weight": {"shape": ["hidden"], "dtype": "bfloat16"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "hidden"], "dtype": "bfloat16"}},
    "reference": REFERENCE,
}


def workload(rows, eps, name="rmsnorm_h48"):
    inputs = {"x": {"type": "random"}, "weight": {"type": "random"}, "eps": {"type": "scalar", "value": eps}}
    work = {"uuid": str(rows), "axes": {"rows": rows}, "inputs": inputs}
    return {"definition": name, "workload": work, "solution": None, "evaluation": None}


@pytest.fixture
def dataset(tmp_path):
    """A folder in the layout of the data set, with one definition and its workloads."""
    for folder in ("definitions", "workloads"):
        (tmp_path / folder / "rmsnorm").mkdir(parents=True)
    (tmp_path / "definitions/rmsnorm/rmsnorm_h48.json").write_text(json.dumps(NORM))
    lines = [workload(7, 1e-3), workload(3, 1e-3), workload(1, 1.0, "another"), workload(1 << 20, 1e-3)]
    (tmp_path / "workloads/rmsnorm/rmsnorm_h48.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def changed(tmp_path, **parts):
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(NORM | parts))
    return path


def rmsnorm_h48(x, weight, eps):
    if x.ndim != 2 or x.shape[1] != 48 or weight.shape != (48,):
        raise AssertionError("x is (rows, 48) and weight is (48,)")
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def without_eps(x, weight, eps):
    return rmsnorm_h48(x, weight, 0.0)


def test_a_definition_describes_calls(dataset):
    found = definition(dataset / "definitions/rmsnorm/rmsnorm_h48.json")
    assert found["arguments"] == ["rows 48: bfloat16", "48: bfloat16", 1e-3]
    assert found["dtypes"] == ["bfloat16"]
    # Those of other definitions, and what is too large to be judged, are left out.
    assert found["sizes"] == {"rows": [3, 7]}
    x, weight = torch.randn(3, 48).bfloat16(), torch.randn(48).bfloat16()
    assert torch.equal(found["reference"](x, weight, 1e-3), rmsnorm_h48(x, weight, 1e-3))
    assert definition(dataset / "definitions/rmsnorm/rmsnorm_h48.json", eps=0.5)["arguments"][2] == 0.5


@pytest.mark.slow
def test_what_is_right_passes_and_what_is_wrong_fails(dataset, tmp_path):
    described = definition(dataset / "definitions/rmsnorm/rmsnorm_h48.json")
    judge(rmsnorm_h48, isolated=False, folder=tmp_path, **described)
    with pytest.raises(Judgement, match="values"):
        judge(without_eps, isolated=False, folder=tmp_path, **described)


def test_without_workloads_all_sizes_are_drawn(tmp_path):
    found = definition(changed(tmp_path), eps=1e-6)
    assert found["sizes"] == {}
    judge(rmsnorm_h48, isolated=False, folder=tmp_path, **found)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({}, "'eps' is a number"),
        ({"constraints": ["rows == eps[-1].item()"]}, "would not meet the constraint"),
        ({"constraints": ["rows =="]}, "is no expression"),
        ({"reference": "def run(:"}, "its reference failed: SyntaxError"),
        ({"reference": "raise SystemExit(3)"}, "its reference failed: SystemExit: 3"),
        ({"reference": "x = 1"}, "no function 'run'"),
        ({"inputs": {"x": {"shape": ["depth"], "dtype": "float32"}}}, "has an axis 'depth'"),
        ({"inputs": {"x": {"shape": ["rows"], "dtype": "float4_e2m1"}}}, "dtype float4_e2m1"),
        ({"axes": 3}, "no definition of FlashInfer Trace"),
    ],
)
def test_what_cannot_be_judged_is_refused(tmp_path, parts, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        definition(changed(tmp_path, **parts))


def test_files_that_are_not_there_are_named(dataset):
    with pytest.raises(ArgumentError, match=r"nowhere\.json"):
        definition(dataset / "nowhere.json")
    with pytest.raises(ArgumentError, match=r"nowhere\.jsonl"):
        definition(dataset / "definitions/rmsnorm/rmsnorm_h48.json", workloads=dataset / "nowhere.jsonl")


@pytest.mark.slow
def test_the_suite_takes_a_definition_for_specs(dataset, tmp_path):
    path = dataset / "definitions/rmsnorm/rmsnorm_h48.json"
    (tmp_path / "acme_kernels.py").write_text(
        "import torch\n\n\ndef rmsnorm_h48(x, weight, eps):\n"
        "    if x.ndim != 2 or x.shape[1] != 48 or weight.shape != (48,):\n        raise AssertionError\n"
        "    wide = x.float()\n"
        "    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)\n"
    )
    command = [sys.executable, "-m", "conformance", "run", "--specs", str(path), "--implementation", "acme_kernels"]
    command += ["--op", "rmsnorm_h48", "--device", "cpu", "--hypothesis-profile", "smoke", "-q"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], str(tmp_path)))}
    run = forked_python.run(command, cwd=tmp_path, env=env)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert "rmsnorm_h48" in run.stdout
