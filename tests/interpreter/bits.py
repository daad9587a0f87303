"""What the interpreter's functions of floats give, as one digest for each: for a process with settings of its own."""

import hashlib
import json

import numpy as np
import torch

from ntops import interpreter

interpreter.install()

from ntops.interpreter import _triton, libdevice  # noqa: E402
from ntops.interpreter.handles import Handle  # noqa: E402

TYPES = {np.float16: _triton.tl.float16, np.float32: _triton.tl.float32, np.float64: _triton.tl.float64}
UNARY = ("exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "rsqrt", "floor", "ceil", "erf", "fabs", "fneg")
BINARY = ("fadd", "fsub", "fmul", "fdiv", "frem", "minimumf", "maximumf", "minnumf", "maxnumf")
LIBDEVICE = (*libdevice._EXACT, *libdevice._APPROXIMATE, *libdevice._OF_TORCH)
_OF_TWO = "atan2 copysign div_rn fast_fdivide fast_pow fdim fmod hypot nextafter pow rhypot".split()
SIZE = 1031


def operands(count, dtype, seed=0):
    """Numbers of every magnitude, of which many are whole and many zeros of either sign."""
    generator = np.random.Generator(np.random.Philox(seed))
    shape = (count, SIZE)
    wide = np.ldexp(generator.integers(-(2**20), 2**20, shape).astype(np.float64), generator.integers(-32, -8, shape))
    kinds = generator.integers(0, 8, shape)
    chosen = np.select([kinds == 0, kinds == 1, kinds == 2], [np.rint(wide), 0.0, -0.0], wide)

    return list(chosen.astype(dtype))


def functions():
    """Each function of floats by its name, of as many arrays as it takes."""
    builder = _triton.builder()

    def built(name):
        def call(*arrays):
            handles = [Handle(array[None], TYPES[array.dtype.type], array.shape) for array in arrays]

            return np.broadcast_to(getattr(builder, f"create_{name}")(*handles).data[0], arrays[0].shape)

        return call

    def extern(name):
        return lambda *arrays: libdevice.call(f"__nv_{name}", arrays)

    found = {name: (built(name), 1) for name in UNARY} | {name: (built(name), 2) for name in BINARY}
    found["fma"] = (built("fma"), 3)

    return found | {
        f"libdevice {name}": (extern(name), 1 + (name in _OF_TWO)) for name in LIBDEVICE if "as_" not in name
    }


def digest(array):
    """Of the bits, every NaN being one."""
    return hashlib.sha256(np.where(np.isnan(array), np.nan, array).astype(array.dtype).tobytes()).hexdigest()


def digests():
    """Of float32 and float64; of torch's functions, which have nothing wider than float64, of float32 alone."""
    with np.errstate(all="ignore"):
        return {
            f"{name} {dtype.__name__}": digest(function(*operands(count, dtype)))
            for name, (function, count) in functions().items()
            for dtype in (np.float32, np.float64)
            if dtype is np.float32 or name.removeprefix("libdevice ") not in libdevice._OF_TORCH
        }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(digests()))
