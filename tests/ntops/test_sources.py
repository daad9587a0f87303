"""NineToothed's sources are made once, not once for each process."""

import os
import subprocess
import sys

import ninetoothed
import pytest
import torch
from ninetoothed import generation

import ntops
from ntops.launch import kernel_sources, recorder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

CALLS = """
import sys, torch, ninetoothed
import ntops.torch
made = []
own = ninetoothed.make
ninetoothed.make = lambda *args, **named: made.append(named["kernel_name"]) or own(*args, **named)
x = torch.arange(48.0, device=sys.argv[1]).view(2, 4, 2, 3).repeat(1, 1, 1, 2)
tables = [torch.ones(4, 3, device=sys.argv[1])] * 2
results = (ntops.torch.add(x, 1), ntops.torch.gelu(x),
           ntops.torch.layer_norm(x, (6,)), ntops.torch.softmax(x, -1),
           ntops.torch.rotary_position_embedding(x, *tables))
print(len(made), [result.double().sum().item() for result in results])
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The names of the kernels whose sources NineToothed makes, in a process that has made none."""
    found = []
    own = ninetoothed.make
    monkeypatch.setattr(
        ninetoothed, "make", lambda *args, **named: found.append(named["kernel_name"]) or own(*args, **named)
    )
    monkeypatch.setattr(generation, "CACHE_DIR", tmp_path)
    _forget(monkeypatch)
    yield found
    recorder.forget()


def _forget(monkeypatch):
    monkeypatch.setattr(kernel_sources, "_kernels", {})
    kernel_sources._generated.cache_clear()
    recorder.forget()


def _add():
    return ntops.torch.add(torch.ones(3, device=DEVICE), 1).tolist()


@pytest.mark.slow
def test_a_second_process_makes_none(tmp_path):
    environment = os.environ | {"NTOPS_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-c", CALLS, DEVICE]
    first, second = (
        subprocess.run(run, capture_output=True, text=True, check=True, env=environment).stdout.split(maxsplit=1)
        for _ in range(2)
    )
    assert int(first[0]) >= 5
    assert second == ["0", first[1]]


def test_made_once(made, monkeypatch):
    assert _add() == [2, 2, 2]
    _forget(monkeypatch)
    assert _add() == [2, 2, 2]
    assert made == ["ntops_add"]


def _forms():
    """Arguments of a kernel, and the same with one thing of it different."""
    arguments = {"arguments": (("ndim", 1),), "blocks": (("block_size", 16),), "num_warps": 4, "num_stages": 1}
    arguments |= {"specialization": kernel_sources.Specialization()}
    others = {
        "arguments": (("ndim", 2),),
        "blocks": (("block_size", 32),),
        "num_warps": 8,
        "num_stages": 2,
        "specialization": kernel_sources.Specialization(unit_strides=(("output", 0), ("input", 0))),
    }
    premake = ntops.kernels.abs.premake
    return [(premake, *(arguments | {name: other}).values()) for name, other in others.items()] + [
        (premake, *(arguments | {"specialization": kernel_sources.Specialization(unit=16)}).values()),
        (premake, *(arguments | {"specialization": kernel_sources.Specialization(wide=True)}).values()),
        (ntops.kernels.neg.premake, *arguments.values()),
        (premake, *arguments.values()),
    ]


def test_other_arguments_are_another_source(made):
    keys = _forms()
    paths = [kernel_sources._source("ntops_unary", key) for key in keys]
    assert len(set(paths)) == len(keys)
    assert [kernel_sources._source("ntops_unary", key) for key in keys] == paths


@pytest.mark.parametrize(("module", "file"), [(kernel_sources, "launch/sources.py"), (ninetoothed, "__init__.py")])
def test_a_file_that_was_edited_is_other_code(tmp_path, monkeypatch, module, file):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "one.py").write_text("a = 1\n")
    monkeypatch.setattr(module, "__file__", str(tmp_path / file))
    before = kernel_sources._code()
    assert kernel_sources._code() == before
    assert not kernel_sources._is_unchanged()
    (tmp_path / "kernels" / "one.py").write_text("a = 12\n")
    assert [now == old for now, old in zip(kernel_sources._code(), before, strict=True)] == [False, False]


@pytest.mark.parametrize("seen", [[False, False], [True, False]])
def test_what_was_edited_since_it_was_imported_is_not_kept(made, monkeypatch, seen):
    states = iter(seen * 2)
    monkeypatch.setattr(kernel_sources, "_is_unchanged", lambda: next(states))

    for _ in range(2):
        assert _add() == [2, 2, 2]
        _forget(monkeypatch)
        states = iter(seen)

    assert made == ["ntops_add"] * 2


def test_code_in_no_folder_is_not_kept(made, monkeypatch, tmp_path):
    (tmp_path / "ntops.zip").touch()
    monkeypatch.setattr(kernel_sources, "__file__", str(tmp_path / "ntops.zip/ntops/launch/kernel_sources.py"))
    assert kernel_sources._code() == (None, None)

    for _ in range(2):
        assert _add() == [2, 2, 2]
        _forget(monkeypatch)

    assert made == ["ntops_add"] * 2


def test_the_source_of_anothers_premake_is_not_kept(made, monkeypatch):
    from ntops.kernels import abs as ours

    def premake(**arguments):
        return ours.premake(**arguments)

    config, specialization = kernel_sources.Config((("block_size", 16),)), kernel_sources.Specialization()
    for _ in range(2):
        kernel_sources.make(premake, {"ndim": 1}, config, specialization)
        _forget(monkeypatch)

    assert made == ["ntops_test_sources"] * 2
