"""Planted defects of layer_norm and rms_norm."""

from __future__ import annotations

import math

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant
from conformance.selftest.softmax import BLOCKS


def _dims(shape):
    return tuple(range(-len(shape), 0))


def _layer_norm(x, shape, weight, bias, eps, mean=None, variance=None):
    """Of a float32 or float64 tensor, with another mean or variance."""
    dims = _dims(shape)
    mean = x.mean(dims, keepdim=True) if mean is None else mean
    variance = (x - mean).square().mean(dims, keepdim=True) if variance is None else variance
    found = (x - mean) / (variance + eps).sqrt()
    found = found if weight is None else found * weight.to(x.dtype)
    return found if bias is None else found + bias.to(x.dtype)


def _rms_norm(x, shape, weight, eps, mean=None):
    mean = x.square().mean(_dims(shape), keepdim=True) if mean is None else mean
    found = x / (mean + eps).sqrt()
    return found if weight is None else found * weight.to(x.dtype)


def _default(input, eps):
    return torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps if eps is None else eps


def _norm_defect(kind, name="", check="values"):
    """A defect of layer_norm: the decorated function gets x, shape, weight, bias, eps and gives the value."""

    def enter(change):
        def layer_norm(right, input, normalized_shape, weight=None, bias=None, eps=1e-5):
            result = right(input, normalized_shape, weight, bias, eps)
            if result.dtype == torch.float64 or not result.numel():
                return result
            return result.copy_(change(input, normalized_shape, weight, bias, eps))

        layer_norm.__doc__ = change.__doc__
        plant("layer_norm", name or change.__name__, kind, check, layer_norm)
        return change

    return enter


def _rms_defect(kind, name="", check="values"):
    """The same of rms_norm, of x, shape, weight, eps."""

    def enter(change):
        def rms_norm(right, input, normalized_shape, weight=None, eps=None):
            result = right(input, normalized_shape, weight, eps)
            if result.dtype == torch.float64 or not result.numel():
                return result
            return result.copy_(change(input, normalized_shape, weight, eps))

        rms_norm.__doc__ = change.__doc__
        plant("rms_norm", name or change.__name__, kind, check, rms_norm)
        return change

    return enter


@_norm_defect("variance")
def one_pass(x, shape, weight, bias, eps):
    """The mean of the squares less the square of the mean."""
    x, dims = x.float(), _dims(shape)
    mean = x.mean(dims, keepdim=True)
    return _layer_norm(x, shape, weight, bias, eps, mean, x.square().mean(dims, keepdim=True) - mean.square())


@_norm_defect("variance")
def unbiased(x, shape, weight, bias, eps):
    """The variance is divided by n - 1."""
    x, dims = x.double(), _dims(shape)
    return _layer_norm(x, shape, weight, bias, eps, None, x.var(dims, keepdim=True))


@_norm_defect("variance")
def mean_not_subtracted(x, shape, weight, bias, eps):
    """The variance is the mean of the squares."""
    x = x.double()
    return _layer_norm(x, shape, weight, bias, eps, None, x.square().mean(_dims(shape), keepdim=True))


@_norm_defect("eps")
def eps_ignored(x, shape, weight, bias, eps):
    return _layer_norm(x.double(), shape, weight, bias, 1e-5)


@_norm_defect("eps")
def eps_outside_root(x, shape, weight, bias, eps):
    """eps is added to the deviation and not to the variance."""
    x = x.double()
    variance = (x - x.mean(_dims(shape), keepdim=True)).square().mean(_dims(shape), keepdim=True)
    return _layer_norm(x, shape, weight, bias, 0.0, None, (variance.sqrt() + eps).square())


@_norm_defect("eps")
def eps_default(x, shape, weight, bias, eps):
    """The default eps is 1e-6."""
    return _layer_norm(x.double(), shape, weight, bias, 1e-6 if eps == 1e-5 else eps)


@_norm_defect("dims")
def one_dim(x, shape, weight, bias, eps):
    """Only the last dim is normalized."""
    return _layer_norm(x.double(), shape[-1:], weight, bias, eps)


@_norm_defect("parameters")
def bias_forgotten(x, shape, weight, bias, eps):
    return _layer_norm(x.double(), shape, weight, None, eps)


@_norm_defect("parameters")
def weight_forgotten(x, shape, weight, bias, eps):
    return _layer_norm(x.double(), shape, None, bias, eps)


@_norm_defect("parameters")
def bias_scaled(x, shape, weight, bias, eps):
    """The bias is added before the weight."""
    found = _layer_norm(x.double(), shape, None, bias, eps)
    return found if weight is None else found * weight.double()


@_norm_defect("precision")
def half_mean(x, shape, weight, bias, eps):
    """Mean and variance of half types are rounded to the half type."""
    wide, dims = x.double(), _dims(shape)
    mean = wide.mean(dims, keepdim=True).to(x.dtype).double() if x.dtype in of.HALF else None
    return _layer_norm(wide, shape, weight, bias, eps, mean)


@_norm_defect("precision")
def neighbours_in_half(x, shape, weight, bias, eps):
    """For the mean of half types two neighbours are added in the half type, before float32."""
    wide, dims, columns = x.double(), _dims(shape), math.prod(shape)
    if x.dtype not in of.HALF or columns % 2:
        return _layer_norm(wide, shape, weight, bias, eps)
    mean = of.packed(x.flatten(-len(shape)), 2).double().sum(-1) / columns
    return _layer_norm(wide, shape, weight, bias, eps, mean.reshape(*mean.shape, *(1 for _ in dims)))


@_norm_defect("precision")
def half_before_weight(x, shape, weight, bias, eps):
    """The normalized half is rounded before it meets weight and bias."""
    found = _layer_norm(x.double(), shape, None, None, eps).to(x.dtype).double()
    found = found if weight is None else found * weight.double()
    return found if bias is None else found + bias.double()


def _short(x, shape, block):
    """The rows without what lies past their last full block."""
    columns = math.prod(shape)
    flat = x.double().reshape(-1, columns)
    return flat[:, : columns // block * block] if columns > block else flat


def _layer_tail(block):
    def change(x, shape, weight, bias, eps):
        """What lies past the last full block of a row takes no part in mean and variance."""
        rows = _short(x, shape, block)
        stats = (rows.mean(1), rows.var(1, correction=0))
        mean, variance = (s.view(*x.shape[: x.ndim - len(shape)], *(1,) * len(shape)) for s in stats)
        return _layer_norm(x.double(), shape, weight, bias, eps, mean, variance)

    return change


def _rms_tail(block):
    def change(x, shape, weight, eps):
        """What lies past the last full block of a row takes no part in the mean of the squares."""
        mean = _short(x, shape, block).square().mean(1).view(*x.shape[: x.ndim - len(shape)], *(1,) * len(shape))
        return _rms_norm(x.double(), shape, weight, _default(x, eps), mean)

    return change


for _block in BLOCKS:
    _norm_defect("tail", f"row_tail_{_block}")(_layer_tail(_block))
    _rms_defect("tail", f"row_tail_{_block}")(_rms_tail(_block))


@_rms_defect("eps")
def eps_of_half(x, shape, weight, eps):
    """Without eps that of the half type."""
    return _rms_norm(x.double(), shape, weight, torch.finfo(x.dtype).eps if eps is None else eps)


@_rms_defect("eps", "eps_ignored")
def _eps_ignored(x, shape, weight, eps):
    """A given eps is not looked at."""
    return _rms_norm(x.double(), shape, weight, _default(x, None))


@_rms_defect("eps", "eps_default")
def _eps_default(x, shape, weight, eps):
    """The default eps is 1e-6."""
    return _rms_norm(x.double(), shape, weight, 1e-6 if eps is None else eps)


@_rms_defect("eps", "eps_outside_root")
def _eps_outside_root(x, shape, weight, eps):
    """eps is added to the root and not to the mean."""
    mean = x.double().square().mean(_dims(shape), keepdim=True)
    return _rms_norm(x.double(), shape, weight, 0.0, (mean.sqrt() + _default(x, eps)).square())


@_rms_defect("eps")
def eps_0_is_none(x, shape, weight, eps):
    """eps = 0 is taken for no eps."""
    return _rms_norm(x.double(), shape, weight, eps or _default(x, None))


@_rms_defect("dims", "one_dim")
def _one_dim(x, shape, weight, eps):
    """Only the last dim is normalized."""
    return _rms_norm(x.double(), shape[-1:], weight, _default(x, eps))


@_rms_defect("mean")
def sum_of_squares(x, shape, weight, eps):
    """The squares are summed and not averaged."""
    total = x.double().square().sum(_dims(shape), keepdim=True)
    return _rms_norm(x.double(), shape, weight, _default(x, eps), total)


@_rms_defect("mean")
def centered(x, shape, weight, eps):
    """The mean is subtracted first."""
    x = x.double()
    return _rms_norm(x - x.mean(_dims(shape), keepdim=True), shape, weight, _default(x, eps))


@_rms_defect("parameters", "weight_forgotten")
def _weight_forgotten(x, shape, weight, eps):
    return _rms_norm(x.double(), shape, None, _default(x, eps))


@_rms_defect("parameters")
def one_plus_weight(x, shape, weight, eps):
    """The weight is taken for an offset from 1."""
    found = _rms_norm(x.double(), shape, None, _default(x, eps))
    return found if weight is None else found * (1 + weight.double())


@_rms_defect("precision", "half_before_weight")
def _half_before_weight(x, shape, weight, eps):
    """The normalized half is rounded before it meets the weight."""
    found = _rms_norm(x.double(), shape, None, _default(x, eps)).to(x.dtype).double()
    return found if weight is None else found * weight.double()


@_rms_defect("precision", "neighbours_in_half")
def _neighbours_in_half(x, shape, weight, eps):
    """Two neighbouring squares of half types are added in the half type, before float32."""
    columns = math.prod(shape)
    if x.dtype not in of.HALF or columns % 2:
        return _rms_norm(x.double(), shape, weight, _default(x, eps))
    squares = x.float().square().flatten(-len(shape)).to(x.dtype)
    mean = of.packed(squares, 2).double().sum(-1) / columns
    return _rms_norm(x.double(), shape, weight, _default(x, eps), mean.reshape(*mean.shape, *(1 for _ in shape)))


@_rms_defect("precision")
def half_squares(x, shape, weight, eps):
    """Squares of half types are rounded to the half type, where they overflow."""
    mean = x.square().double().mean(_dims(shape), keepdim=True)
    return _rms_norm(x.double(), shape, weight, _default(x, eps), mean)


@defect("layer_norm rms_norm", "refusals", "errors", "takes_integers")
def norm_of_integers(right, input, *args, **kwargs):
    """Integers are taken, as float32."""
    whole = isinstance(input, torch.Tensor) and not input.is_floating_point()
    return right(input.float() if whole else input, *args, **kwargs)


@defect("layer_norm rms_norm", "refusals", "errors")
def any_weight(right, input, normalized_shape, weight=None, *args, **kwargs):
    """A weight of another shape is cut or repeated."""
    if isinstance(weight, torch.Tensor) and isinstance(input, torch.Tensor) and isinstance(normalized_shape, tuple):
        count = math.prod(normalized_shape)
        if weight.numel() and weight.shape != normalized_shape:
            weight = weight.reshape(-1).repeat(count // weight.numel() + 1)[:count].view(normalized_shape)
    return right(input, normalized_shape, weight, *args, **kwargs)


@defect("layer_norm rms_norm", "parameters", "errors")
def weight_required(right, input, normalized_shape, weight=None, *args, **kwargs):
    """A call without a weight is refused."""
    if weight is None:
        raise TypeError("weight must be a tensor")
    return right(input, normalized_shape, weight, *args, **kwargs)


@defect("rms_norm", "parameters", "errors")
def weight_of_the_dtype(right, input, normalized_shape, weight=None, eps=None):
    """A weight of another dtype is refused."""
    if isinstance(weight, torch.Tensor) and weight.dtype != input.dtype:
        raise RuntimeError("weight and input have different dtypes")
    return right(input, normalized_shape, weight, eps)


@defect("layer_norm", "refusals", "errors")
def parameters_of_any_dtype(right, input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Parameters of another dtype are taken."""
    if all(isinstance(x, torch.Tensor) for x in (input, weight, bias) if x is not None):
        weight, bias = (x if x is None else x.to(input.dtype) for x in (weight, bias))
    return right(input, normalized_shape, weight, bias, eps)
