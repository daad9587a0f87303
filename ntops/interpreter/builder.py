"""Arithmetic, casts and constants for the whole grid at once: the operations that Triton's semantics build code
from."""

import numpy as np

from ntops.interpreter import elementary, formats, libdevice
from ntops.interpreter._triton import BaseBuilder, ir, tl
from ntops.interpreter.blocks import Blocks
from ntops.interpreter.handles import Handle, constant, encoded, is_fp8, numpy_dtype, values
from ntops.interpreter.memory import Memory


def _shape(*handles):
    """Return the common shape of operands; scalars fit every shape."""
    shape = ()

    for handle in handles:
        if handle.shape != shape:
            shape = tuple(map(max, shape, handle.shape)) if shape and handle.shape else shape or handle.shape

    return shape


def _aligned(handle, rank):
    """Return the array of ``handle`` with ``rank`` dims after the programs, for scalars among blocks."""
    data = values(handle)

    if len(handle.shape) == rank:
        return data

    return data.reshape(data.shape[0], *(1,) * rank)


def _operands(*handles):
    shape = _shape(*handles)

    return shape, [_aligned(handle, len(shape)) for handle in handles]


def _binary(operation, exact=False):
    def create(self, lhs, rhs):
        shape, (a, b) = _operands(lhs, rhs)
        data = operation(a, b)

        if not exact:
            data = encoded(data, lhs.dtype)
        elif is_fp8(lhs.dtype):
            data = formats.fp8_from_float(data, lhs.dtype.name)

        return Handle(data, lhs.dtype, shape)

    return create


def _wrapping(operation):
    """Return an integer operation; one-bit integers wrap like all others, where NumPy's would be logical."""

    def create(self, lhs, rhs):
        shape, (a, b) = _operands(lhs, rhs)

        if a.dtype == bool:
            return Handle((operation(a.view(np.int8), b.view(np.int8)) & 1).astype(bool), lhs.dtype, shape)

        return Handle(operation(a, b), lhs.dtype, shape)

    return create


def _comparison(operation, unordered=None):
    """Return a comparison; ``unordered``, if given, is the result where either operand is NaN."""

    def create(self, lhs, rhs):
        shape, (a, b) = _operands(lhs, rhs)
        data = operation(a, b)

        if unordered is not None:
            either_nan = np.isnan(a) | np.isnan(b)
            data = data | either_nan if unordered else data & ~either_nan

        return Handle(data, tl.int1, shape)

    return create


def _unary(operation):
    def create(self, arg):
        return Handle(encoded(operation(values(arg)), arg.dtype), arg.dtype, arg.shape)

    return create


def _elementary(function):
    return _unary(elementary.rounded_once(function))


def _non_negative(a, b):
    return a.dtype.kind == "u" or (a.min() >= 0 and b.min() > 0)


def divide(a, b):
    """Divide integers, rounding toward zero."""
    if _non_negative(a, b):
        return a // b

    return (a - np.fmod(a, b)) // b


def remainder(a, b):
    """Return the remainder of integer division toward zero."""
    return a - (a // b) * b if _non_negative(a, b) else np.fmod(a, b)


def _shift_right(signed):
    def operation(a, b):
        kind = np.dtype(f"{'int' if signed else 'uint'}{a.dtype.itemsize * 8}")

        return np.right_shift(a.view(kind), b.view(kind)).view(a.dtype)

    return operation


def _as_int8(data):
    return data.view(np.int8) if data.dtype == bool else data


class Builder(Memory, Blocks, BaseBuilder):
    """Compute for all programs at once the operations that Triton's own builder executes one program at a time."""

    def __init__(self, options, codegen_fns):
        self.arch = None
        self.is_optimized = True
        self.options = options
        self.codegen_fns = codegen_fns
        self.codegen_fns["convert_custom_types"] = _refuse("conversion from and to fp8e4b15")
        self.start((1, 1, 1), [np.zeros(1, np.int32)] * 3, np.zeros(1, np.int64))

    def start(self, grid, indices, programs):
        """Select the programs that run next, by their index along each axis of the grid and their flat index."""
        self.grid = grid
        self.indices = indices
        self.flat_indices = programs
        self.programs = len(programs)

    # Constants

    def get_null_value(self, type):
        return Handle(np.zeros(1, numpy_dtype(type.scalar)), type.scalar)

    def get_all_ones_value(self, type):
        dtype = numpy_dtype(type.scalar)

        if dtype.kind not in "biu":
            raise TypeError(f"there is no value of all ones of {type}")

        return Handle(np.array([-1]).astype(dtype), type.scalar)

    def create_get_program_id(self, axis):
        return Handle(self.indices[axis], tl.int32)

    def create_get_num_programs(self, axis):
        return constant(self.grid[axis], tl.int32)

    # Floating point

    create_fadd = _binary(np.add)
    create_fsub = _binary(np.subtract)
    create_fmul = _binary(np.multiply)
    create_fdiv = create_precise_divf = create_approx_divf = _binary(np.divide)
    create_frem = _binary(np.fmod)
    create_fneg = _unary(np.negative)
    create_minimumf = _binary(elementary.minimum, exact=True)
    create_maximumf = _binary(elementary.maximum, exact=True)
    # Compiled, these functions drop a NaN.
    create_minnumf = _binary(elementary.minnum, exact=True)
    create_maxnumf = _binary(elementary.maxnum, exact=True)

    create_fcmpOLT = _comparison(np.less)
    create_fcmpOGT = _comparison(np.greater)
    create_fcmpOLE = _comparison(np.less_equal)
    create_fcmpOGE = _comparison(np.greater_equal)
    create_fcmpOEQ = _comparison(np.equal)
    create_fcmpUNE = _comparison(np.not_equal)
    create_fcmpULT = _comparison(np.less, unordered=True)
    create_fcmpUGT = _comparison(np.greater, unordered=True)
    create_fcmpULE = _comparison(np.less_equal, unordered=True)
    create_fcmpUGE = _comparison(np.greater_equal, unordered=True)
    create_fcmpUEQ = _comparison(np.equal, unordered=True)
    create_fcmpONE = _comparison(np.not_equal, unordered=False)

    create_exp = _unary(elementary.exp)
    create_exp2 = _unary(elementary.exp2)
    create_log = _elementary(np.log)
    create_log2 = _elementary(np.log2)
    create_sin = _unary(elementary.sin)
    create_cos = _elementary(np.cos)
    create_sqrt = _unary(elementary.sqrt)
    create_precise_sqrt = _unary(np.sqrt)
    create_rsqrt = _unary(elementary.rsqrt)
    create_floor = _unary(np.floor)
    create_ceil = _unary(np.ceil)
    create_erf = _unary(libdevice.erf)

    def create_fabs(self, arg):
        if is_fp8(arg.dtype):
            return Handle(arg.data & np.uint8(0x7F), arg.dtype, arg.shape)

        return Handle(np.abs(arg.data), arg.dtype, arg.shape)

    def create_fma(self, x, y, z):
        shape, (a, b, c) = _operands(x, y, z)

        return Handle(encoded(formats.fma(a, b, c), z.dtype), z.dtype, shape)

    def create_clampf(self, arg, low, high, propagate_nans):
        shape, (x, lo, hi) = _operands(arg, low, high)

        if propagate_nans == ir.PROPAGATE_NAN.ALL:
            data = elementary.minimum(elementary.maximum(x, lo), hi)
        else:
            data = elementary.minnum(elementary.maxnum(x, lo), hi)

        return Handle(encoded(data, arg.dtype), arg.dtype, shape)

    # Integers

    create_add = _wrapping(np.add)
    create_sub = _wrapping(np.subtract)
    create_mul = _wrapping(np.multiply)
    create_sdiv = create_udiv = create_idiv = _binary(lambda a, b: divide(_as_int8(a), _as_int8(b)), exact=True)
    create_srem = create_urem = _binary(lambda a, b: remainder(_as_int8(a), _as_int8(b)), exact=True)
    create_shl = _binary(np.left_shift, exact=True)
    create_ashr = _binary(_shift_right(signed=True), exact=True)
    create_lshr = _binary(_shift_right(signed=False), exact=True)
    create_umulhi = _binary(formats.multiply_high, exact=True)
    create_minsi = create_minui = _binary(np.minimum, exact=True)
    create_maxsi = create_maxui = _binary(np.maximum, exact=True)
    create_and = _binary(np.bitwise_and, exact=True)
    create_or = _binary(np.bitwise_or, exact=True)
    create_xor = _binary(np.bitwise_xor, exact=True)
    create_icmpSLE = create_icmpULE = _comparison(np.less_equal)
    create_icmpSLT = create_icmpULT = _comparison(np.less)
    create_icmpSGE = create_icmpUGE = _comparison(np.greater_equal)
    create_icmpSGT = create_icmpUGT = _comparison(np.greater)
    create_icmpEQ = _comparison(np.equal)
    create_icmpNE = _comparison(np.not_equal)

    def create_iabs(self, arg):
        return Handle(np.abs(arg.data), arg.dtype, arg.shape)

    # Casts

    def _cast(self, src, target, *_):
        data, dtype = values(src), target.scalar
        wanted = numpy_dtype(dtype)

        if dtype.is_floating() and (is_fp8(dtype) or dtype.name == "bf16"):
            data = encoded(data if data.dtype == np.float32 else data.astype(np.float32), dtype)
        elif data.dtype.kind == "f" and wanted.kind in "iu":
            data = formats.float_to_integer(data, wanted)
        elif data.dtype != wanted:
            data = data.astype(wanted)

        return Handle(data, dtype, src.shape)

    create_si_to_fp = create_ui_to_fp = create_fp_to_si = create_fp_to_ui = _cast
    create_fp_ext = create_fp_trunc = create_int_cast = _cast

    def create_fp_to_fp(self, src, target, rounding_mode):
        if rounding_mode != ir.ROUNDING_MODE.RTZ:
            return self._cast(src, target)

        data, dtype = values(src), target.scalar

        if dtype.name == "bf16":
            data = formats.round_to_bfloat16(data, toward_zero=True)
        elif dtype.name == "fp16":
            data = formats.round_toward_zero_to_float16(data)
        elif is_fp8(dtype):
            data = formats.fp8_from_float(data, dtype.name, toward_zero=True)
        else:
            raise NotImplementedError(f"the interpreter has no rounding toward zero to {dtype}")

        return Handle(data, dtype, src.shape)

    def create_bitcast(self, src, target):
        dtype = target.scalar

        if src.dtype.is_ptr() and dtype.is_ptr():
            return Handle(src.data, dtype, src.shape, src.origin)

        bits = formats.bits_from_bfloat16(src.data) if src.dtype.name == "bf16" else src.data

        if dtype.name == "bf16":
            return Handle(formats.bfloat16_from_bits(bits.view(np.uint16)), dtype, src.shape)

        return Handle(bits.view(numpy_dtype(dtype)), dtype, src.shape)

    create_int_to_ptr = create_ptr_to_int = create_bitcast

    # Selection and pointers

    def create_select(self, condition, lhs, rhs):
        shape = _shape(condition, lhs, rhs)
        choice, a, b = (
            h.data if len(h.shape) == len(shape) else h.data.reshape(-1, *(1,) * len(shape))
            for h in (condition, lhs, rhs)
        )
        origin = lhs.origin if lhs.origin is rhs.origin else None

        return Handle(np.where(choice, a, b), lhs.dtype, shape, origin)

    def create_addptr(self, pointer, offset):
        size = max(1, pointer.dtype.element_ty.primitive_bitwidth // 8)
        shape, (addresses, steps) = _operands(pointer, offset)
        # Sign-extend first; uint64 arithmetic then wraps as a GPU's does.
        steps = steps.astype(np.int64).view(np.uint64) * np.uint64(size)

        return Handle(addresses + steps, pointer.dtype, shape, pointer.origin)

    def create_extern_elementwise(self, library, path, symbol, arguments, result_type, is_pure):
        shape, arrays = _operands(*arguments)
        dtype = result_type.scalar
        data = libdevice.call(symbol, arrays)

        return Handle(data if data.dtype == numpy_dtype(dtype) else data.astype(numpy_dtype(dtype)), dtype, shape)


def _getter(name):
    return lambda self, value: constant(value, getattr(tl, name))


for _type, _name in {
    "int1": "int1",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    **{f"fp8{kind}": f"float8{kind}" for kind in ("e5", "e5b16", "e4nv", "e4b8")},
    **{f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}.items():
    setattr(Builder, f"get_{_type}", _getter(_name))


def _refuse(what):
    def refuse(*args, **kwargs):
        raise NotImplementedError(f"ntops' interpreter does not support {what}")

    return refuse


# Refuse operations of other versions of Triton's builder that this one lacks, rather than do them wrongly.
for _name in dir(BaseBuilder):
    _is_defined_here = any(_name in vars(_class) for _class in (Builder, Memory, Blocks))

    if _name.startswith("create_") and not _is_defined_here:
        setattr(Builder, _name, _refuse(_name.removeprefix("create_")))
