"""The gradients of elementwise functions, each for one of the function's arguments.

``gradient`` is the gradient of the function's result; ``input`` and ``other`` are its arguments, ``result`` is its
result. The formulas are torch's (tools/autograd/derivatives.yaml), computed in ``compute_dtype`` and rounded once.
"""

import functools

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, element_wise, expressions, functions
from ntops.kernels.element_wise import arrangement


def application_divided(output, gradient, other, compute_dtype):
    quotient = functions.divide(ntl.cast(gradient, compute_dtype), ntl.cast(other, compute_dtype), compute_dtype)
    output = ntl.cast(quotient, output.dtype)


def application_divisor(output, gradient, input, other, compute_dtype):
    divisor = ntl.cast(other, compute_dtype)
    # Divide twice, since the square may leave the range where the quotient does not.
    once = functions.divide(ntl.cast(input, compute_dtype), divisor, compute_dtype)
    twice = functions.divide(once, divisor, compute_dtype)
    output = ntl.cast(ntl.cast(gradient, compute_dtype) * -1.0 * twice, output.dtype)


def application_base(output, gradient, input, exponent, compute_dtype):
    power = ntl.cast(exponent, compute_dtype)
    lowered = functions.power(ntl.cast(input, compute_dtype), power - 1, compute_dtype, False)
    slope = power * lowered
    # Anything to the power 0 is 1, NaN included.
    output = ntl.cast(ntl.where(power == 0, 0, ntl.cast(gradient, compute_dtype) * slope), output.dtype)


def application_exponent(output, gradient, input, exponent, compute_dtype):
    base = ntl.cast(input, compute_dtype)
    power = ntl.cast(exponent, compute_dtype)
    raised = functions.power(base, power, compute_dtype, False)
    slope = raised * libdevice.log(base)
    flat = (base == 0) & (power >= 0)
    output = ntl.cast(ntl.where(flat, 0, ntl.cast(gradient, compute_dtype) * slope), output.dtype)


def application_abs(output, gradient, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    slope = ntl.cast(gradient, compute_dtype)
    # NaN has the gradient of 0, as in torch.
    output = ntl.cast(ntl.where(value > 0, slope, ntl.where(value < 0, slope * -1.0, slope * 0)), output.dtype)


def application_rsqrt(output, gradient, result, compute_dtype):
    root = ntl.cast(result, compute_dtype)
    output = ntl.cast(-0.5 * ntl.cast(gradient, compute_dtype) * (root * root * root), output.dtype)


def application_cos(output, gradient, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    # Compiled by Triton, libdevice's sine takes subnormal numbers for zeros.
    sine = ntl.where(ntl.abs(value) < 2.0**-100, value, ntl.sin(value))
    output = ntl.cast(ntl.cast(gradient, compute_dtype) * (sine * -1.0), output.dtype)


def application_sigmoid(output, gradient, result, compute_dtype):
    value = ntl.cast(result, compute_dtype)
    output = ntl.cast(ntl.cast(gradient, compute_dtype) * (1 - value) * value, output.dtype)


def application_tanh(output, gradient, result, compute_dtype):
    value = ntl.cast(result, compute_dtype)
    output = ntl.cast(ntl.cast(gradient, compute_dtype) * (1 - value * value), output.dtype)


def silu(value, compute_dtype):
    power = 1 + libdevice.exp(value * -1.0)
    sigmoid = functions.reciprocal(power, compute_dtype)

    return value * sigmoid


def silu_slope(value, compute_dtype):
    power = 1 + libdevice.exp(value * -1.0)
    sigmoid = functions.reciprocal(power, compute_dtype)

    return sigmoid * (1 + value * (1 - sigmoid))


def gelu(value, compute_dtype):
    return value * (0.5 * (1 + ntl.erf(value * 0.7071067811865476)))


def gelu_slope(value, compute_dtype):
    phi = 0.5 * (1 + ntl.erf(value * 0.7071067811865476))
    density = 0.3989422804014327 * libdevice.exp(-0.5 * value * value)

    return phi + value * density


def gelu_tanh(value, compute_dtype):
    bent = libdevice.tanh(0.7978845608028654 * value * (1 + 0.044715 * value * value))

    return 0.5 * value * (1 + bent)


def gelu_tanh_slope(value, compute_dtype):
    square = value * value
    bent = libdevice.tanh(0.7978845608028654 * value * (1 + 0.044715 * square))
    slope = 0.7978845608028654 * (1 + 0.134145 * square)

    return 0.5 * (1 + bent) + 0.5 * value * (1 - bent * bent) * slope


def application_silu(output, gradient, input, compute_dtype):
    slope = silu_slope(ntl.cast(input, compute_dtype), compute_dtype)
    output = ntl.cast(ntl.cast(gradient, compute_dtype) * slope, output.dtype)


def application_gelu(output, gradient, input, compute_dtype):
    slope = gelu_slope(ntl.cast(input, compute_dtype), compute_dtype)
    output = ntl.cast(ntl.cast(gradient, compute_dtype) * slope, output.dtype)


def application_gelu_tanh(output, gradient, input, compute_dtype):
    slope = gelu_tanh_slope(ntl.cast(input, compute_dtype), compute_dtype)
    output = ntl.cast(ntl.cast(gradient, compute_dtype) * slope, output.dtype)


def application_gated_silu(output, gradient, input, other, compute_dtype):
    slope = silu_slope(ntl.cast(input, compute_dtype), compute_dtype)
    # In torch's order, which decides what overflows.
    found = ntl.cast(gradient, compute_dtype) * ntl.cast(other, compute_dtype) * slope
    output = ntl.cast(found, output.dtype)


def application_gated_gelu(output, gradient, input, other, compute_dtype):
    slope = gelu_slope(ntl.cast(input, compute_dtype), compute_dtype)
    # In torch's order, which decides what overflows.
    found = ntl.cast(gradient, compute_dtype) * ntl.cast(other, compute_dtype) * slope
    output = ntl.cast(found, output.dtype)


def application_gated_gelu_tanh(output, gradient, input, other, compute_dtype):
    slope = gelu_tanh_slope(ntl.cast(input, compute_dtype), compute_dtype)
    # In torch's order, which decides what overflows.
    found = ntl.cast(gradient, compute_dtype) * ntl.cast(other, compute_dtype) * slope
    output = ntl.cast(found, output.dtype)


def application_activated_silu(output, gradient, input, compute_dtype):
    slope = silu(ntl.cast(input, compute_dtype), compute_dtype)
    output = ntl.cast(ntl.cast(gradient, compute_dtype) * slope, output.dtype)


def application_activated_gelu(output, gradient, input, compute_dtype):
    slope = gelu(ntl.cast(input, compute_dtype), compute_dtype)
    output = ntl.cast(ntl.cast(gradient, compute_dtype) * slope, output.dtype)


def application_activated_gelu_tanh(output, gradient, input, compute_dtype):
    slope = gelu_tanh(ntl.cast(input, compute_dtype), compute_dtype)
    output = ntl.cast(ntl.cast(gradient, compute_dtype) * slope, output.dtype)


def application_clamped(output, gradient, input, low, high, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    inside = (value >= ntl.cast(low, compute_dtype)) & (value <= ntl.cast(high, compute_dtype))
    output = ntl.cast(ntl.where(inside, ntl.cast(gradient, compute_dtype), 0), output.dtype)


def application_low_of_both(output, gradient, input, low, high, compute_dtype):
    bound = ntl.cast(low, compute_dtype)
    taken = (ntl.cast(input, compute_dtype) < bound) & (bound < ntl.cast(high, compute_dtype))
    output = ntl.cast(ntl.where(taken, ntl.cast(gradient, compute_dtype), 0), output.dtype)


def application_high_of_both(output, gradient, input, low, high, compute_dtype):
    bound = ntl.cast(high, compute_dtype)
    taken = (ntl.cast(input, compute_dtype) > bound) | (bound < ntl.cast(low, compute_dtype))
    output = ntl.cast(ntl.where(taken, ntl.cast(gradient, compute_dtype), 0), output.dtype)


def application_shared(output, gradient, input, other, count, compute_dtype):
    taken = ntl.cast(input, compute_dtype) == ntl.cast(other, compute_dtype)
    # As in torch, an infinity spoils the gradients of all elements, and so does NaN, which equals none.
    share = ntl.cast(gradient, compute_dtype) * ntl.where(taken, 1, 0)
    quotient = functions.divide(share, ntl.cast(count, compute_dtype), compute_dtype)
    output = ntl.cast(quotient, output.dtype)


APPLICATIONS = {
    "scaled": expressions.gradient(lambda gradient, scale: gradient * scale),
    "divided": (application_divided, ("other",)),
    "divisor": (application_divisor, ("input", "other")),
    "base": (application_base, ("input", "exponent")),
    "exponent": (application_exponent, ("input", "exponent")),
    "abs": (application_abs, ("input",)),
    "rsqrt": (application_rsqrt, ("result",)),
    "sin": expressions.gradient(lambda gradient, input: gradient * ntl.cos(input)),
    "cos": (application_cos, ("input",)),
    # A comparison with NaN is false, so the gradient at NaN passes, as torch's does.
    "relu": expressions.gradient(lambda gradient, result: ntl.where(result <= 0, 0, gradient)),
    "sigmoid": (application_sigmoid, ("result",)),
    "tanh": (application_tanh, ("result",)),
    "silu": (application_silu, ("input",)),
    "gelu": (application_gelu, ("input",)),
    "gelu_tanh": (application_gelu_tanh, ("input",)),
    "gated_silu": (application_gated_silu, ("input", "other")),
    "gated_gelu": (application_gated_gelu, ("input", "other")),
    "gated_gelu_tanh": (application_gated_gelu_tanh, ("input", "other")),
    "activated_silu": (application_activated_silu, ("input",)),
    "activated_gelu": (application_activated_gelu, ("input",)),
    "activated_gelu_tanh": (application_activated_gelu_tanh, ("input",)),
    "clamped": (application_clamped, ("input", "low", "high")),
    "raised": expressions.gradient(lambda gradient, input, low: ntl.where(input >= low, gradient, 0)),
    "lowered": expressions.gradient(lambda gradient, input, high: ntl.where(input <= high, gradient, 0)),
    "low": expressions.gradient(lambda gradient, input, low: ntl.where(input < low, gradient, 0)),
    "high": expressions.gradient(lambda gradient, input, high: ntl.where(input > high, gradient, 0)),
    "low_of_both": (application_low_of_both, ("input", "low", "high")),
    "high_of_both": (application_high_of_both, ("input", "low", "high")),
    "share_of_sum": expressions.gradient(lambda gradient, input, result: gradient * libdevice.exp(input - result)),
    "equal": expressions.gradient(lambda gradient, other: gradient == other),
    "shared": (application_shared, ("input", "other", "count")),
}
"""The application of each gradient by name, and the names of its operands beside the result's gradient."""


def premake(ndim, function, dtype=None, output_dtype=None, compute_dtype=None, scalars=None, block_size=None):
    """Return the arrangement, application and tensors of one of ``APPLICATIONS``."""
    compute_dtype = compute_dtype or constants.accumulated(output_dtype or dtype)
    application, names = APPLICATIONS[function]
    tensors = element_wise.tensors(ndim, "gradient", *names, dtype=dtype, output_dtype=output_dtype, scalars=scalars)
    arranged = functools.partial(arrangement, block_size=block_size)

    return arranged, *constants.bind(application, tensors, compute_dtype=compute_dtype)
