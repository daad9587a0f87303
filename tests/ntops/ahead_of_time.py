"""Builds the named ops ahead of time as ``ninetoothed.build`` does, for an H200 that need not be there; a program.

What NineToothed hands to ``nvcc`` and to a linker is made in full, Triton's compiler included, in this one process.
Prints JSON: what went wrong by "op dtype", and how many kernels were built.
"""

import json
import os
import pathlib
import re
import sys
import tempfile
import types

os.environ["TRITON_INTERPRET"] = "0"

import triton
from ninetoothed import aot
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver
from triton.tools.compile import CompileArgs, compile_kernel

from conformance import spec
from ntops import kernels

DTYPES = {"float16": "fp16", "float64": "fp64", "int32": "i32", "bool": "i1"}
BLOCKS = {"block_rows": 2, "block_columns": 64}
# What NineToothed writes for an argument of a kernel: a pointer, a size or a stride of a tensor, or a number.
ARGUMENT = re.compile(r"\(\w+\)(\w+)\.(data|shape\[\d\]|strides\[\d\])|\*\(\w+ \*\)(\w+)\.data")


class Driver(CudaDriver):
    def __init__(self):
        self.utils = types.SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": 232448})

    def get_current_device(self):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


def compile_here(path, name, signature, grid, num_warps, num_stages):
    """``ninetoothed.aot._compile`` without a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, name)
        compile_kernel(CompileArgs(str(path), name, signature, grid, None, num_warps, num_stages, None, out))
        files = list(out.parent.iterdir())
        return files[0].name.split(".")[1], {file.name: file.read_text() for file in files}


def build(op, dtype):
    """What is wrong with the kernel of an op, or an empty string."""
    premake = getattr(kernels, op).premake
    names = premake.__code__.co_varnames[: premake.__code__.co_argcount]
    config = {name: BLOCKS.get(name, 32) for name in names if name.startswith("block_")}
    config |= {"ndim": 2} if "ndim" in names else {}
    arrangement, application, tensors = premake(dtype=dtype, **config)
    # As ninetoothed.make does.
    parameters = application.__code__.co_varnames[: application.__code__.co_argcount]
    application.__annotations__ = dict(zip(parameters, arrangement(*tensors), strict=True))
    known = {tensor.name for tensor in tensors}
    sources = aot._aot(application, "cuda", f"{op}_{dtype}", num_warps=4, num_stages=2)

    for source in sources.values():
        for launch in re.findall(r"return kernels_\w+\[ctx_id\]\.\w+\(\(CUstream\)stream, (.*)\);", source):
            for argument in launch.split(", "):
                found = ARGUMENT.fullmatch(argument)

                if not found or (found[1] or found[3]) not in known:
                    return f"no argument of {sorted(known)}: {argument}"

    return "" if any("[ctx_id]" in source for source in sources.values()) else "no launch"


def main():
    triton.runtime.driver.set_active(Driver())
    aot._compile = compile_here
    variants = aot._enumerate_variant_specs
    # Of the variants for strides and alignment, which differ in nothing else, the most special one.
    aot._enumerate_variant_specs = lambda *arguments: variants(*arguments)[:1]
    wrong, built = {}, 0

    for number, op in enumerate(sys.argv[1:]):
        names = sorted(set(spec.registry()[op].dtypes) & set(DTYPES))

        # A build takes most of a second, and the operators of a family differ in their expression alone: dtypes take
        # turns.
        for name in [names[number % len(names)]] if names else []:
            try:
                problem = build(op, DTYPES[name])
            except Exception as error:  # noqa: BLE001  (whatever a build raises is what was asked for)
                problem = f"{type(error).__name__}: {error}"

            built += not problem

            if problem:
                wrong[f"{op} {name}"] = problem

    print(json.dumps({"built": built, "wrong": wrong}))


if __name__ == "__main__":
    main()
