"""Compile a masked load with other fillers for an NVIDIA GPU that is not there; print what the check says, and whether
the assembly shows the sign's bits in the place of the second element."""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

from conformance.load_checks import wrongly_filled


@triton.jit
def copy(input, output, columns, FILLER: tl.constexpr):
    rows = tl.arange(0, 64)[:, None]
    lanes = tl.arange(0, 4)[None, :]
    places = lanes * 64 + rows
    tl.store(output + places, tl.load(input + places, (lanes < columns) & (rows < 64), other=FILLER))


for dtype, filler in [("i8", -128), ("i16", -32768), ("i16", -2), ("i16", -1), ("i16", 7), ("i32", -7), ("fp16", -1.0)]:
    signature = {"input": f"*{dtype}", "output": f"*{dtype}", "columns": "i32", "FILLER": "constexpr"}
    source = triton.compiler.ASTSource(fn=copy, signature=signature, constexprs={"FILLER": filler})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    bits = f"0x{int(filler) & 0xFFFFFFFFFFFFFFFF:016x};"
    print(dtype, filler, bits in compiled.asm["ptx"], wrongly_filled(compiled.asm["ttgir"]), sep="|")
