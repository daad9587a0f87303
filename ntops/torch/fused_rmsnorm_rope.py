from ntops.host import rope
from ntops.host.arguments import check_real, check_tensor, common_device
from ntops.launch.recorder import repeatable


@repeatable
def fused_rmsnorm_rope(x, weight, cos, sin, eps=1e-6, *, interleaved=False, head_dim=None):
    """Normalize each row by its root mean square, then rotate each of its heads by the angles of its position.

    ``n = x / sqrt(mean(x^2) + eps) * weight`` over the whole row (Zhang and Sennrich, arXiv:1910.07467); then, of each
    head, ``y0 = n0 cos - n1 sin`` and ``y1 = n0 sin + n1 cos`` for each pair (Su et al., arXiv:2104.09864). Computed in
    float32 (float64 for float64 ``x``) and rounded once, in one pass over memory.

    :param x: A floating-point tensor, (B, T, hidden), of any strides; hidden is a multiple of ``head_dim``.
    :param weight: A floating-point tensor, (hidden,).
    :param cos: A floating-point tensor of the cosines by position, (T', head_dim) or (T', head_dim / 2), T' >= T: row t
        is for position t. In a full-width table the second half repeats the first (with ``interleaved``, each second
        element the one before it), as models of the Llama family make it, and is not read.
    :param sin: The sines likewise, of the shape of ``cos``.
    :param eps: A number.
    :param interleaved: Whether the pairs of a head are ``(n[2 i], n[2 i + 1])``, else ``(n[i], n[i + head_dim / 2])``.
    :param head_dim: The number of elements of a head, even, up to 16384. ``None``: the width of the tables; so it has
        to be given with tables of half the width.
    :return: A contiguous tensor of the shape and dtype of ``x``.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes, ``head_dim`` or devices do not fit.
    :raises NotImplementedError: Heads of more than 16384 elements; integer, bool, complex, sparse, quantized or nested
        operands.
    """
    tensors = {"x": x, "weight": weight, "cos": cos, "sin": sin}

    for name, tensor in tensors.items():
        check_tensor(tensor, name)

        if not tensor.dtype.is_floating_point:
            raise NotImplementedError(
                f"argument '{name}' has dtype {tensor.dtype}; fused_rmsnorm_rope is defined for floating-point only"
            )

    if x.ndim != 3:
        raise RuntimeError(f"argument 'x' must be (B, T, hidden), not {tuple(x.shape)}")

    if weight.shape != x.shape[2:]:
        raise RuntimeError(f"argument 'weight' must be ({x.shape[2]},), as 'x' has rows, not {tuple(weight.shape)}")

    pairs = rope.check_tables(x, cos, sin, head_dim)
    eps = check_real(eps, "eps")
    common_device(tensors)

    return rope.norm_and_rotate(x, weight, cos, sin, eps, pairs, bool(interleaved))
