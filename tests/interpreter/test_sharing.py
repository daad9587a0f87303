"""Kernels that differ in what the compiler is told of their arguments alone are rewritten once."""

import importlib.util
from pathlib import Path

import pytest
import torch

from ntops import interpreter
from ntops.interpreter import MemoryFault, rewrite

SOURCE = """
import triton
import triton.language as tl

SCALE = tl.constexpr({scale})


@triton.jit{options}
def kernel(out, x, n{annotation}):
    i = tl.arange(0, 8)
    {comment}
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0) * SCALE)
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Kernels from sources of their own; ``make.rewritten`` are the files of those whose source was rewritten."""
    compiled, files = rewrite._compiled, []

    def spy(function, *rest):
        files.append(Path(function.__code__.co_filename).stem)

        return compiled(function, *rest)

    def make(name, scale=2, options="", annotation="", comment="# same"):
        path = tmp_path / f"{name}.py"
        path.write_text(SOURCE.format(scale=scale, options=options, annotation=annotation, comment=comment))
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

        return module.kernel

    monkeypatch.setattr(rewrite, "_compiled", spy)
    monkeypatch.setattr(rewrite, "_codes", {})
    make.rewritten = files

    return make


def run(kernel, length=8):
    x, out = torch.arange(8.0), torch.empty(length)

    with interpreter.watch():
        kernel[(1,)](out, x, 8)

    return out.tolist()


def test_kernels_of_one_body_are_rewritten_once(make):
    # The very object, which is what decides; two that are equal may be changed apart.
    first = make("first")
    second = make("second", options='(do_not_specialize=["n"])', annotation=': "i64"')
    second.fn.__globals__["SCALE"] = first.fn.__globals__["SCALE"]

    assert run(first) == run(second) == [2.0 * i for i in range(8)]
    assert make.rewritten == ["first"]


@pytest.mark.parametrize("different", [{"scale": 3}, {"comment": "# else"}])
def test_what_is_used_and_the_source_have_to_be_the_same(make, different):
    first, second = make("first"), make("second", **different)
    scale = different.get("scale", 2)

    assert run(first) == [2.0 * i for i in range(8)]
    assert run(second) == [scale * float(i) for i in range(8)]
    assert make.rewritten == ["first", "second"]


def test_each_has_lines_of_its_own(make):
    first, second = make("first"), make("second", annotation=': "i64"')
    second.fn.__globals__["SCALE"] = first.fn.__globals__["SCALE"]

    for name, kernel in {"first": first, "second": second}.items():
        with pytest.raises(MemoryFault) as caught:
            run(kernel, length=4)

        file, line = caught.value.line.rsplit(":", 1)
        assert (Path(file).stem, int(line)) == (name, 12)

    assert make.rewritten == ["first"]
