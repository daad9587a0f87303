"""Kernels built ahead of time from a ``premake`` that is told the dtype, as downstream projects build them."""

import inspect
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import ntops.torch  # it chooses compiled or interpreted before Triton is imported, which NineToothed does

# isort: split
import ninetoothed

from ntops import kernels
from ntops.kernels import constants

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.slow
def test_every_premake_builds_up_to_the_c_compiler():
    program = pathlib.Path(__file__).with_name("ahead_of_time.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(program.parents[2]), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-P", program, *ntops.torch.OPERATORS],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == {}
    # Those of float8 alone have no dtype here.
    assert found["built"] > 0.9 * len(ntops.torch.OPERATORS)


def test_processes_that_build_have_the_same_c_header(tmp_path):
    # ninetoothed.build compiles in processes that it spawns, which import NineToothed before they import ntops.
    (tmp_path / "home").mkdir()
    environment = {"HOME": str(tmp_path / "home"), "NTOPS_CACHE_DIR": str(tmp_path / "sources")}
    environment = os.environ | environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    headers = {
        subprocess.check_output(
            [sys.executable, "-c", f"import {first}\nfrom ninetoothed import aot\nprint(aot._HEADER_PATH)"],
            text=True,
            env=environment,
        )
        for first in ("ntops.torch", "ninetoothed")
    }
    assert headers == {f"{tmp_path / 'home' / '.ninetoothed' / 'ninetoothed.h'}\n"}


@pytest.mark.parametrize("op", ntops.torch.OPERATORS)
def test_a_builder_can_write_the_defaults_of_a_premake_in_c(op):
    # ninetoothed.build compares each argument of a premake with a number, a bool or None.
    parameters = inspect.signature(getattr(kernels, op).premake).parameters.values()
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    defaults = {parameter.default for parameter in parameters} - {inspect.Parameter.empty}
    assert all(default is None or isinstance(default, (bool, int)) for default in defaults)


def _application(output, input, compute_dtype, precision):
    output = ntl.dot(input, compute_dtype, precision)  # noqa: F821, F841


def test_constants_are_written_into_the_application_or_stay_arguments():
    tensors = (ninetoothed.Tensor(1), ninetoothed.Tensor(1))
    application, bound = constants.bind(_application, tensors, compute_dtype="fp32", precision="ieee")
    assert inspect.getsource(application) == (
        "def _application(output, input):\n    output = ntl.dot(input, ntl.float32, 'ieee')\n"
    )
    assert len(bound) == 2
    application, bound = constants.bind(_application, tensors, compute_dtype="bf16", precision=None)
    assert "def _application(output, input, precision):" in inspect.getsource(application)
    assert len(bound) == 3
    assert bound[2].constexpr
    application, bound = constants.bind(_application, tensors, compute_dtype=None, precision=None)
    assert application is _application
    assert len(bound) == 4


def test_an_unknown_compute_dtype_is_named():
    with pytest.raises(ValueError, match=r"'compute_dtype' is 'float32'; valid are i1, i8,.* fp64"):
        kernels.add.premake(1, dtype="fp16", compute_dtype="float32")


def build(premake, folder, **config):
    """``ninetoothed.build`` of one configuration; the function takes the tensors and the numbers of the kernel."""
    compilation = {"num_warps": 4, "num_stages": 2}
    name = premake.__module__.rpartition(".")[2]
    kernel = ninetoothed.build(premake, [((), config, compilation)], caller="cuda", kernel_name=name, output_dir=folder)
    bound = inspect.signature(premake).bind(**config)
    bound.apply_defaults()
    chosen = [0 if value is None else value for value in bound.arguments.values()]
    return lambda *arguments: kernel(*arguments, *chosen, *compilation.values())


@gpu
def test_an_elementwise_kernel_is_built_and_called(tmp_path):
    kernel = build(kernels.add.premake, tmp_path, ndim=1, dtype=ninetoothed.float16, block_size=1024)
    whole = torch.randint(-8, 8, (2, 5000), device="cuda").half()

    # A size that is a multiple of 16, one that is none, and gaps: each has a variant of its own.
    for input, other in [whole[:, :4096], whole, whole[:, 1::3]]:
        output = torch.empty(input.shape, dtype=torch.half, device="cuda")
        kernel(output, input, other, 3.0)
        assert torch.equal(output, torch.add(input, other, alpha=3))


@gpu
def test_a_matrix_product_is_built_and_called(tmp_path):
    blocks = {"block_size_m": 64, "block_size_n": 64, "block_size_k": 32}
    kernel = build(kernels.mm.premake, tmp_path, dtype=ninetoothed.float16, **blocks)

    for m, k, n in [(128, 64, 256), (100, 70, 131)]:
        # Sums of these are whole numbers that float16 holds, so every order of adding gives them.
        input, mat2 = (torch.randint(-4, 5, size, device="cuda").half() for size in ((m, k), (k, n)))
        output = torch.empty(m, n, dtype=torch.half, device="cuda")

        for factors in [(input, mat2), (input.t().contiguous().t(), mat2.t().contiguous().t())]:
            kernel(output.fill_(float("nan")), *factors)
            assert torch.equal(output, torch.mm(input, mat2))
