"""What is shipped and what is pinned."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = ("ntops", "strategies", "conformance", "reports")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling (extra dev)")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def shipped(name: str) -> bool:
    return not name.startswith("reports/results/") and "__pycache__" not in name


def test_one_wheel_holds_the_sources_and_the_saved_cases_of_all_packages(wheel):
    files = [
        path for package in PACKAGES for kind in ("py", "json", "jsonl") for path in (ROOT / package).rglob(f"*.{kind}")
    ]
    expected = {name for path in files if shipped(name := path.relative_to(ROOT).as_posix())}
    assert {name.split("/")[0] for name in expected} >= {"ntops", "strategies", "conformance"}
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert expected <= inside
    assert all(name.split("/")[0] in PACKAGES for name in inside), "something else than the packages is shipped"
    assert all(shipped(name) for name in inside)


def test_wheel_metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    fields = Parser().parsestr(wheel.read(name).decode())
    assert fields["License-Expression"] == "Apache-2.0"
    assert any(name.endswith("/LICENSE") for name in wheel.namelist())
    assert fields["Requires-Python"] == ">=3.11"
    needed = {Requirement(line).name for line in fields.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert needed == {"ninetoothed", "numpy", "torch", "triton"}
    assert set(fields.get_all("Provides-Extra", [])) == {
        *("conformance", "dev", "flag-gems", "jax", "liger", "onnxruntime", "redis", "shadow", "tvm")
    }


def test_everything_that_ci_installs_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pairs}
    pending = [Requirement(line) for line in PROJECT["dependencies"]]
    pending += [Requirement(line) for extra in PROJECT["optional-dependencies"].values() for line in extra]
    seen: set[str] = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        # torch's CUDA wheel pins its CUDA packages itself.
        if name in seen or name == "ntops" or name.startswith(("nvidia-", "cuda-")):
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        seen.add(name)
        try:
            # What another version needs, the pinned one may not.
            if metadata.version(name).split("+")[0] == pins.get(name):
                pending += [Requirement(line) for line in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:
            continue  # not installed here, so what it needs is not known; itself it must be pinned
    assert seen - pins.keys() == set()
