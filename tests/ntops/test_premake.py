"""Downstream builders find the arrangement, the application and ``premake`` of every operator by name."""

import inspect

import pytest

import ntops

# isort: split
import ninetoothed

BLOCKS = {"block_rows": 2, "block_columns": 64}


@pytest.mark.parametrize("op", ntops.torch.OPERATORS)
def test_every_kernel_has_its_parts(op):
    module = getattr(ntops.kernels, op)
    names = inspect.signature(module.premake).parameters
    config = {name: BLOCKS.get(name, 32) for name in names if name.startswith("block_")}
    config |= {"ndim": 2} if "ndim" in names else {}
    arrangement, application, tensors = module.premake(dtype="i32" if "bitwise" in op else "fp32", **config)
    assert arrangement.func is module.arrangement
    assert inspect.isfunction(module.arrangement)
    assert inspect.isfunction(module.application)
    # Each tensor is a parameter of the application, arranged.
    assert len(arrangement(*tensors)) == len(tensors) == len(inspect.signature(application).parameters)
    kernel = ninetoothed.make(arrangement, application, tensors, kernel_name=op, num_warps=4, num_stages=1)
    assert callable(kernel)


def test_expressions_of_one_name_have_sources_of_their_own():
    """NineToothed reads them when it compiles, which may be after others were made."""
    kernels = ntops.kernels.elementwise_backward
    made = {name: kernels.premake(1, name, dtype="fp32")[1] for name in ("sin", "relu", "equal")}
    sources = {name: inspect.getsource(application) for name, application in made.items()}
    assert len(set(sources.values())) == len(sources)
