"""The schemas of ``torch.ops.ntops``: one declaration for each operator, from which its overloads follow.

A declaration names all arguments by position, as ``setup_context(ctx, inputs, output)`` of a
:class:`ntops.autograd.Formula` gets them: ``inputs`` is the tuple of all arguments of the declaration, in its order,
defaults included, and ``output`` is the result, or the tuple of results. One formula serves all functional overloads of
an operator, so that an ``Operand`` is a tensor in one call and a number in another.

``Operand`` stands for a tensor or a number; at least one operand is a tensor. Its overloads are ``add`` (tensors),
``add.Scalar`` (a number last) and ``add.Scalar_Tensor`` (a number first), which take and return the same.

Overloads that write are derived, and return nothing, since they write an argument:

- ``out``: ``add.out``, with a further keyword ``out``. A formula has no part in it: torch differentiates no ``out=``.
- ``inplace``: ``relu_`` for ``relu``, whose first argument is written. Its gradient is that of the functional operator
  and of ``copy_``.

Where the signature of ``ntops.torch`` says more than a schema can, :mod:`ntops.library.calls` translates:

- ``dropout(input, p, training, inplace)`` draws ``seed``, an int64 0-d tensor, from torch's generator of the device,
  and calls ``dropout(input, seed, p)``: what ``input`` and ``seed`` are decides the result, so that its gradient is
  ``dropout(gradient, seed, p)``.
- ``cross_entropy`` returns the loss and what its gradient needs, which are not differentiable: the statistics of rows,
  and the number by which a mean divides. ``reduction`` says what ``size_average`` and ``reduce`` say, too.
- ``scaled_dot_product_attention.statistics`` returns the output and what its gradient needs. The dispatcher calls it in
  the place of ``scaled_dot_product_attention`` if an argument requires grad. ``scaled_dot_product_attention.gradients``
  is its backward pass, which is traced as one operator: composed of torch's, it would keep the matrix of scores.
- ``linear_cross_entropy`` returns the same as ``cross_entropy``. Autocast gives it a ``dtype``, for a loss of another
  dtype than the logits.
- ``quantize_fp8`` with a scale is ``quantize_fp8.scale``, which returns the 8-bit tensor alone.
- A KV cache of views is written by ``copy_`` before; one of positions is an overload of attention that writes
  ``present_key`` and ``present_value``.
"""

import dataclasses
import itertools
import re

from ntops.host import families


@dataclasses.dataclass(frozen=True)
class Declaration:
    """An operator's schema without its name, and the overloads that write."""

    schema: str
    out: bool = False
    inplace: bool = False


_FAMILIES = {
    "activation": Declaration("(Tensor input) -> Tensor"),
    "bitwise": Declaration("(Operand input, Operand other) -> Tensor", out=True),
    "comparison": Declaration("(Tensor input, Operand other) -> Tensor", out=True),
    "exact": Declaration("(Tensor input) -> Tensor", out=True),
    "floating": Declaration("(Tensor input) -> Tensor", out=True),
    "question": Declaration("(Tensor input) -> Tensor"),
}
"""The declarations of the members of families; of a member with further arguments, ``OPERATORS`` has one."""
_REDUCTION = Declaration(
    "(Tensor input, int[]? dim=None, bool keepdim=False, ScalarType? dtype=None) -> Tensor", out=True
)
_EXTREME = Declaration("(Tensor input, int[]? dim=None, bool keepdim=False) -> Tensor", out=True)
_SOFTMAX = Declaration("(Tensor input, int dim, ScalarType? dtype=None) -> Tensor")
_ATTENTION = (
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, "
    "float? scale=None, bool enable_gqa=False, str? causal_variant=None) -> "
)

OPERATORS = {
    "add": Declaration("(Operand input, Operand other, Scalar alpha=1) -> Tensor", out=True),
    "addmm": Declaration("(Tensor input, Tensor mat1, Tensor mat2, Scalar beta=1, Scalar alpha=1) -> Tensor", out=True),
    "amax": _EXTREME,
    "amin": _EXTREME,
    "argmax": Declaration("(Tensor input, int? dim=None, bool keepdim=False) -> Tensor", out=True),
    "bmm": Declaration("(Tensor input, Tensor mat2) -> Tensor", out=True),
    "clamp": Declaration("(Tensor input, Operand? min=None, Operand? max=None) -> Tensor", out=True),
    "cross_entropy": Declaration(
        "(Tensor input, Tensor target, Tensor? weight, str reduction, SymInt ignore_index, float label_smoothing) -> "
        "(Tensor, Tensor, Tensor)"
    ),
    "cumsum": Declaration("(Tensor input, int dim, ScalarType? dtype=None) -> Tensor", out=True),
    "dequantize_fp8": Declaration("(Tensor quantized, Tensor scale, ScalarType dtype) -> Tensor"),
    "div": Declaration("(Operand input, Operand other, str? rounding_mode=None) -> Tensor", out=True),
    "dropout": Declaration("(Tensor input, Tensor seed, float p) -> Tensor"),
    "fp8_gemm": Declaration("(Tensor a, Tensor b, Tensor? a_scale, Tensor? b_scale, ScalarType out_dtype) -> Tensor"),
    "fused_gated_mlp": Declaration('(Tensor x, Tensor gate_weight, Tensor up_weight, str activation="silu") -> Tensor'),
    "fused_rmsnorm_rope": Declaration(
        "(Tensor x, Tensor weight, Tensor cos, Tensor sin, float eps=1e-06, bool interleaved=False, "
        "SymInt? head_dim=None) -> Tensor"
    ),
    "gelu": Declaration('(Tensor input, str approximate="none") -> Tensor'),
    "layer_norm": Declaration(
        "(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> Tensor"
    ),
    "linear_cross_entropy": Declaration(
        "(Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias, Tensor? weight, str reduction, "
        "SymInt? ignore_index, float label_smoothing, ScalarType? dtype=None) -> (Tensor, Tensor, Tensor)"
    ),
    "log_softmax": _SOFTMAX,
    "logsumexp": Declaration("(Tensor input, int[] dim, bool keepdim=False) -> Tensor", out=True),
    "matmul": Declaration("(Tensor input, Tensor other) -> Tensor", out=True),
    "mean": _REDUCTION,
    "mm": Declaration("(Tensor input, Tensor mat2) -> Tensor", out=True),
    "mul": Declaration("(Operand input, Operand other) -> Tensor", out=True),
    "pow": Declaration("(Operand input, Operand exponent) -> Tensor", out=True),
    "quantize_fp8": Declaration("(Tensor tensor, ScalarType dtype, str granularity) -> (Tensor, Tensor)"),
    "quantize_fp8.scale": Declaration("(Tensor tensor, Tensor scale, ScalarType dtype) -> Tensor"),
    "relu": Declaration("(Tensor input) -> Tensor", inplace=True),
    "rms_norm": Declaration(
        "(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor"
    ),
    "rotary_position_embedding": Declaration(
        "(Tensor input, Tensor sin_table, Tensor cos_table, bool interleaved=True) -> Tensor", inplace=True
    ),
    "scaled_dot_product_attention": Declaration(_ATTENTION + "Tensor"),
    "scaled_dot_product_attention.gradients": Declaration(
        "(Tensor gradient, Tensor output, Tensor query, Tensor key, Tensor value, Tensor statistics, "
        "Tensor? attn_mask, bool is_causal, bool lower_right, float scale, bool[4] needed) -> "
        "(Tensor, Tensor, Tensor, Tensor)"
    ),
    "scaled_dot_product_attention.positions": Declaration(
        "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, bool is_causal, float? scale, "
        "bool enable_gqa, str? causal_variant, Tensor(a!) present_key, Tensor(b!) present_value, "
        "SymInt present_key_slot) -> Tensor"
    ),
    "scaled_dot_product_attention.sequences": Declaration(
        "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, bool is_causal, float? scale, "
        "bool enable_gqa, str? causal_variant, Tensor(a!) present_key, Tensor(b!) present_value, "
        "Tensor present_key_slot, Tensor? present_value_slot) -> Tensor"
    ),
    "scaled_dot_product_attention.statistics": Declaration(_ATTENTION + "(Tensor, Tensor)"),
    "softmax": _SOFTMAX,
    "sub": Declaration("(Operand input, Operand other, Scalar alpha=1) -> Tensor", out=True),
    "sum": _REDUCTION,
}
OPERATORS = {
    name: dataclasses.replace(_FAMILIES[member.family], inplace=member.inplace)
    for name, member in families.MEMBERS.items()
} | OPERATORS
"""The declarations by operator name, followed by a dot and an overload's name if it has one."""

BACKWARD = {"scaled_dot_product_attention.gradients"}
"""The declarations that are backward passes. Autocast casts nothing for them, and formulas compute gradients of
gradients in another way."""


@dataclasses.dataclass(frozen=True)
class Overload:
    """One overload of ``torch.ops.ntops``."""

    operator: str
    """The name in ``ntops.torch``."""
    name: str
    """The qualified name without its namespace, such as ``add.Scalar_out``."""
    schema: str
    writes: str | None = None
    """"out" or "inplace" for derived overloads; ``None`` for declared ones."""
    functional: str | None = None
    """The name of the overload from which it is derived."""

    @property
    def arguments(self):
        """Return the arguments except ``out``, in order: their names and declared types."""
        pairs = re.findall(r"([\w?\[\]]+)(?:\(\w!\))? (\w+)[,=)]", self.schema.partition(", *")[0] + ",")
        return [(name, kind) for kind, name in pairs]


def overloads():
    """Return every overload of every operator."""
    for name, declaration in OPERATORS.items():
        operator = name.partition(".")[0]

        for suffix, schema in _expanded(declaration.schema):
            name_of = f"{name}.{suffix}" if suffix else name
            yield Overload(operator, name_of, schema)

            if declaration.out:
                written = re.sub(r"\) -> .*", ", *, Tensor(a!) out) -> ()", schema)
                yield Overload(operator, f"{name}.{suffix}_out" if suffix else f"{name}.out", written, "out", name_of)

        if declaration.inplace:
            written = declaration.schema.replace("(Tensor input", "(Tensor(a!) input").partition("->")[0] + "-> ()"
            yield Overload(operator, f"{name}_", written, "inplace", name)


def _expanded(schema):
    """Return the schema for each kind of its operands, with the name of the overload."""
    places = [match.span() for match in re.finditer(r"\bOperand\b", schema)]

    if not places:
        yield "", schema
        return

    # Both bounds of clamp are of one kind.
    together = "Operand?" in schema

    for kinds in itertools.product(("Tensor", "Scalar"), repeat=len(places)):
        if (together and len(set(kinds)) > 1) or (schema.startswith("(Operand") and set(kinds) == {"Scalar"}):
            continue

        parts, end = [], 0

        for kind, (begin, after) in zip(kinds, places, strict=True):
            parts += [schema[end:begin], kind]
            end = after

        suffix = "" if set(kinds) == {"Tensor"} else "Scalar" if kinds[-1] == "Scalar" else "Scalar_Tensor"
        yield suffix, "".join(parts) + schema[end:]
