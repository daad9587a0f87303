"""Planted defects of matrix products."""

from __future__ import annotations

import math

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant

BLOCKS = (16, 32, 64, 128)


def _matrices(args):
    """The two factors, and what comes before them."""
    return args[:-2], args[-2], args[-1]


def _plain(out, *tensors):
    return out is None and all(x.ndim >= 2 for x in tensors)


def _inner(block):
    def wrong(right, *args, out=None, **kwargs):
        """What lies past the last full block of K is not summed."""
        result = right(*args, out=out, **kwargs)
        first, a, b = _matrices(args)
        kept = a.shape[-1] // block * block
        if not kept or not _plain(out, a, b):
            return result
        return result.copy_(right(*first, a[..., :kept], b[..., :kept, :], **kwargs))

    return wrong


def _edge(block, dim):
    def wrong(right, *args, out=None, **kwargs):
        """What lies past the last full block of rows or columns is 0."""
        result = right(*args, out=out, **kwargs)
        if out is None and result.ndim >= 2 and result.shape[dim] > block:
            result.narrow(dim, result.shape[dim] // block * block, result.shape[dim] % block).zero_()
        return result

    return wrong


def _one_block(block):
    def wrong(right, *args, out=None, **kwargs):
        """Of a long K only the last block is summed: the accumulator begins anew."""
        result = right(*args, out=out, **kwargs)
        first, a, b = _matrices(args)
        start = (a.shape[-1] - 1) // block * block
        if start <= 0 or not _plain(out, a, b):
            return result
        return result.copy_(right(*first, a[..., start:], b[..., start:, :], **kwargs))

    return wrong


for _op in of.PRODUCTS:
    for _block in BLOCKS if _op == "mm" else BLOCKS[1:3]:
        plant(_op, f"inner_tail_{_block}", "tail", "values", _inner(_block))
        plant(_op, f"rows_{_block}", "tail", "values", _edge(_block, -2))
        plant(_op, f"columns_{_block}", "tail", "values", _edge(_block, -1))
    plant(_op, "accumulator_64", "accumulation", "values", _one_block(64))


@defect(of.PRODUCTS, "accumulation")
def half_accumulator(right, *args, out=None, **kwargs):
    """Half types are accumulated in the half type, a block of 16 at a time."""
    result = right(*args, out=out, **kwargs)
    first, a, b = _matrices(args)
    if result.dtype not in of.HALF or not _plain(out, a, b) or not a.shape[-1] or not result.numel():
        return result
    total = torch.zeros(result.shape, dtype=result.dtype)
    for start in range(0, a.shape[-1], 16):
        total += (a[..., start : start + 16].float() @ b[..., start : start + 16, :].float()).to(result.dtype)
    if first:
        total = kwargs.get("alpha", 1) * total.float()
        total = total if kwargs.get("beta", 1) == 0 else total + kwargs.get("beta", 1) * first[0].float()
    return result.copy_(total)


@defect(of.PRODUCTS, "K = 0")
def empty_sum(right, *args, out=None, **kwargs):
    """A sum of no terms is left unwritten."""
    result = right(*args, out=out, **kwargs)
    return result.fill_(7) if out is None and _matrices(args)[1].shape[-1] == 0 else result


@defect("mm bmm matmul", "K = 0", "errors")
def no_empty_sum(right, input, other, *, out=None):
    """A sum of no terms is refused."""
    result = right(input, other, out=out)
    if input.shape[-1] == 0:
        raise ValueError("K must be positive")
    return result


@defect("mm bmm", "transposition")
def squares_transposed(right, input, mat2, *, out=None):
    """A square second operand is read the other way round."""
    result = right(input, mat2, out=out)
    if out is None and mat2.shape[-1] == mat2.shape[-2] > 1:
        return result.copy_(right(input, mat2.transpose(-1, -2)))
    return result


@defect(of.PRODUCTS, "specials")
def masked_by_product(right, *args, out=None, **kwargs):
    """Tails of K are multiplied with 0 and not masked, so that what is not finite there shows: every row meets the
    first element of the second operand times 0."""
    result = right(*args, out=out, **kwargs)
    _, a, b = _matrices(args)
    if out is not None or not b.numel() or not result.numel() or a.shape[-1] % 16 == 0:
        return result
    return result.add_((b.reshape(-1)[0] * 0).to(result.dtype)) if b.reshape(-1)[0].isfinite().logical_not() else result


@defect("mm bmm matmul", "specials")
def zeros_are_skipped(right, a, b, *, out=None):
    """A term with a factor 0 is left out, so that 0 times infinity counts nothing."""
    result = right(a, b, out=out)
    if not _plain(out, a, b):
        return result
    terms = a.unsqueeze(-1).double() * b.unsqueeze(-3).double()
    skipped = (a.unsqueeze(-1) == 0) | (b.unsqueeze(-3) == 0)
    return result.copy_(terms.masked_fill(skipped, 0.0).sum(-2)) if terms.numel() < 2**21 else result


@defect("mm bmm matmul", "refusals", "errors", "mixed_dtypes")
def product_of_mixed_dtypes(right, input, other, *, out=None):
    """Operands of different dtypes are promoted."""
    if all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in (input, other)):
        dtype = torch.promote_types(input.dtype, other.dtype)
        input, other = input.to(dtype), other.to(dtype)
    return right(input, other, out=out)


@defect(of.PRODUCTS, "refusals", "errors", "takes_integers")
def product_of_integers(right, *args, out=None, **kwargs):
    """Integers are multiplied, by way of float64."""
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    if out is None and len(tensors) == len(args) and not any(x.is_floating_point() for x in tensors):
        return right(*(x.double() for x in args), **kwargs).to(tensors[0].dtype)
    return right(*args, out=out, **kwargs)


@defect("mm bmm", "refusals", "errors")
def inner_cropped(right, input, mat2, *, out=None):
    """Of inner sizes that differ the smaller one counts."""
    if all(isinstance(x, torch.Tensor) and x.ndim >= 2 for x in (input, mat2)):
        size = min(input.shape[-1], mat2.shape[-2])
        input, mat2 = input[..., :size], mat2[..., :size, :]
    return right(input, mat2, out=out)


@defect("mm", "refusals", "errors")
def any_rank(right, input, mat2, *, out=None):
    """Vectors and batches are taken, as matmul takes them."""
    tensors = isinstance(input, torch.Tensor) and isinstance(mat2, torch.Tensor)
    if tensors and out is None and input.dtype == mat2.dtype and (input.ndim != 2 or mat2.ndim != 2):
        return torch.matmul(input, mat2)
    return right(input, mat2, out=out)


@defect("bmm", "batch")
def first_batch(right, input, mat2, *, out=None):
    """Every matrix meets the first one of the second operand."""
    result = right(input, mat2, out=out)
    return result.copy_(right(input, mat2[:1].expand(mat2.shape))) if out is None and len(mat2) else result


@defect("bmm", "batch")
def batch_stride(right, input, mat2, *, out=None):
    """The batch stride of the second operand is that of dense matrices."""
    result = right(input, mat2, out=out)
    if out is None and mat2.numel() and mat2.stride(0) != mat2[0].numel():
        again = mat2[:1].expand(mat2.shape) if mat2.stride(0) == 0 else mat2.flip(0)
        return result.copy_(right(input, again))
    return result


@defect("bmm", "batch", "errors")
def batch_broadcasts(right, input, mat2, *, out=None):
    """A batch of one broadcasts."""
    tensors = all(isinstance(x, torch.Tensor) and x.ndim == 3 for x in (input, mat2))
    if tensors and out is None and input.dtype == mat2.dtype and input.shape[-1] == mat2.shape[-2]:
        return torch.matmul(input, mat2) if 1 in (len(input), len(mat2)) else right(input, mat2)
    return right(input, mat2, out=out)


# --- addmm -------------------------------------------------------------------------------------------------------


@defect("addmm", "beta")
def beta_0_times_input(right, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """With beta = 0 the input is multiplied with 0, NaN and all."""
    special = (input * 0).expand(mat1.shape[0], mat2.shape[1]).clone() if _tensors(input, mat1, mat2) else 0
    result = right(input, mat1, mat2, beta=beta, alpha=alpha, out=out)
    return result.add_(special) if beta == 0 else result


def _tensors(*values):
    fits = all(isinstance(x, torch.Tensor) for x in values) and values[1].ndim == values[2].ndim == 2
    if not fits:
        return False
    try:
        return torch.broadcast_shapes(values[0].shape, shape := (values[1].shape[0], values[2].shape[1])) == shape
    except RuntimeError:
        return False


@defect("addmm", "beta")
def beta_ignored(right, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    result = right(input, mat1, mat2, beta=beta, alpha=alpha, out=out)
    return result if out is not None else result.copy_(right(input, mat1, mat2, alpha=alpha))


@defect("addmm", "alpha", name="alpha_ignored")
def addmm_alpha_ignored(right, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    result = right(input, mat1, mat2, beta=beta, alpha=alpha, out=out)
    return result if out is not None else result.copy_(right(input, mat1, mat2, beta=beta))


@defect("addmm", "alpha")
def alpha_times_all(right, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """alpha multiplies the input as well."""
    result = right(input, mat1, mat2, beta=beta, alpha=alpha, out=out)
    return result if out is not None else result.copy_(right(input, mat1, mat2, beta=beta * alpha, alpha=alpha))


@defect("addmm", "alpha")
def factors_swapped(right, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """alpha and beta change places."""
    result = right(input, mat1, mat2, beta=beta, alpha=alpha, out=out)
    return result if out is not None else result.copy_(right(input, mat1, mat2, beta=alpha, alpha=beta))


@defect("addmm", "rounding")
def product_rounded(right, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """The product is rounded to the half type before the input is added."""
    result = right(input, mat1, mat2, beta=beta, alpha=alpha, out=out)
    if out is not None or result.dtype not in of.HALF or beta == 0:
        return result
    product = (alpha * (mat1.float() @ mat2.float())).to(result.dtype)
    return result.copy_(product.float() + beta * input.float())


@defect("addmm", "K = 0")
def input_lost_without_terms(right, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """With K = 0 the result is 0 and not beta * input."""
    result = right(input, mat1, mat2, beta=beta, alpha=alpha, out=out)
    return result.zero_() if mat1.shape[1] == 0 else result


@defect("addmm", "scalars", "errors")
def factors_are_floats(right, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """Factors that are bools are refused."""
    if isinstance(beta, bool) or isinstance(alpha, bool):
        raise TypeError("beta and alpha must be numbers")
    return right(input, mat1, mat2, beta=beta, alpha=alpha, out=out)


# --- matmul ------------------------------------------------------------------------------------------------------


@defect("matmul", "vectors", "errors")
def no_vectors(right, input, other, *, out=None):
    """Vectors are refused."""
    if input.ndim == 1 or other.ndim == 1:
        raise RuntimeError("both operands must be matrices")
    return right(input, other, out=out)


@defect("matmul", "vectors", "metadata")
def vectors_stay_matrices(right, input, other, *, out=None):
    """A vector's dim of size 1 stays in the result."""
    result = right(input, other, out=out)
    return result.unsqueeze(-1) if out is None and other.ndim == 1 else result


@defect("matmul", "vectors")
def outer_product(right, input, other, *, out=None):
    """A vector times a batch meets the rows and not the columns."""
    result = right(input, other, out=out)
    if out is None and input.ndim == 1 and other.ndim >= 2 and other.shape[-1] == other.shape[-2]:
        return result.copy_(right(input, other.transpose(-1, -2)))
    return result


@defect("matmul", "out", "metadata")
def out_of_a_vector_keeps_its_strides(right, input, other, *, out=None):
    """An out= of the product of a vector and a matrix is not made a row of a matrix first."""
    if isinstance(out, torch.Tensor) and out.ndim == input.ndim == 1 and out.shape == other.shape[1:]:
        result = right(input, other)
        return out.copy_(result) if result.dtype == out.dtype else right(input, other, out=out)
    return right(input, other, out=out)


@defect("matmul", "refusals", "errors")
def takes_numbers(right, input, other, *, out=None):
    """A 0-d tensor or number is multiplied with."""
    numbers = [x for x in (input, other) if isinstance(x, int | float) or (isinstance(x, torch.Tensor) and not x.ndim)]
    if numbers and isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor | int | float):
        return torch.mul(input, other)
    return right(input, other, out=out)


@defect("matmul", "batch", "errors")
def batches_must_be_equal(right, input, other, *, out=None):
    """Batch dims that broadcast are refused."""
    result = right(input, other, out=out)
    if input.ndim > 2 and other.ndim > 2 and math.prod(input.shape[:-2]) != math.prod(other.shape[:-2]):
        raise RuntimeError("batch dims must be equal")
    return result
