"""What a tensor argument is, as data: every draw of a strategy ends in these records.

They hold structure only (shape, layout recipe, dtype, value recipe, seed, planted specials), never elements,
so a case is small, readable and reproducible bit for bit on any machine. JSON in and out is msgspec's; a record
that does not make sense is refused where it is made, with a ValueError (msgspec's ValidationError when decoding).
"""

from __future__ import annotations

import msgspec

from strategies.dtypes import format_of
from strategies.values import check_recipe, special_bits


def _non_negative(what: str, values: tuple[int, ...]) -> None:
    for value in values:
        if value < 0:
            raise ValueError(f"{what} must not be negative, got {values}")


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the elements of a logical shape lie in memory; built on a base buffer, then viewed.

    The view is made in this order: a dense buffer whose dims are stored in ``order`` (outermost first; empty
    means 0, 1, 2, ...), each dim ``i`` holding ``steps[i]`` times its size (empty means 1 everywhere) and sliced
    back with that step, followed by ``padding[i]`` more (empty means 0 everywhere) that the view leaves out,
    dims in ``expanded`` holding one element and expanded (stride 0), and the whole starting ``offset`` elements
    into its storage. With a negative padding the next row begins so many elements before this one ends: windows that
    overlap, as ``Tensor.unfold`` makes them.
    """

    order: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    expanded: tuple[int, ...] = ()
    offset: int = 0

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError(f"layout.order must be a permutation of the dims, got {self.order}")
        if any(step < 1 for step in self.steps):
            raise ValueError(f"layout.steps must be 1 or more, got {self.steps}")
        if list(self.expanded) != sorted(set(self.expanded)):
            raise ValueError(f"layout.expanded must be distinct dims in ascending order, got {self.expanded}")
        _non_negative("layout.expanded", self.expanded)
        _non_negative("layout.offset", (self.offset,))

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError unless the layout fits a shape."""
        rank = len(shape)
        for name in ("order", "steps", "padding"):
            value = getattr(self, name)
            if value and len(value) != rank:
                raise ValueError(f"layout.{name} must be empty or name all {rank} dims, got {value}")
        for dim in self.expanded:
            if dim >= rank:
                raise ValueError(f"layout.expanded names dim {dim} of a shape with {rank} dims")
            if (self.steps and self.steps[dim] != 1) or (self.padding and self.padding[dim] != 0):
                raise ValueError(f"dim {dim} is expanded, so it can have neither a step nor padding")
        for dim, padding in enumerate(self.padding):
            step = self.steps[dim] if self.steps else 1
            if padding < 0 and shape[dim] * step + padding < 1:
                raise ValueError(f"layout.padding leaves nothing of dim {dim}, of size {shape[dim]}: {padding}")


CONTIGUOUS = Layout()
NORMAL = "normal"


class Special(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A special value planted at a linear index (row-major over the logical shape, modulo its size) and at the
    ``run`` - 1 that follow, as far as there are such."""

    index: int
    value: str
    """"nan", "inf", "-inf", "-0", "max", "min" (lowest), "tiny" (smallest subnormal), "-tiny", "-nan", "full nan"; or a
    number as Python writes it, which is rounded to the dtype."""
    run: int = 1

    def __post_init__(self) -> None:
        if self.run < 1:
            raise ValueError(f"special.run must be 1 or more, got {self.run}")


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tensor", omit_defaults=True):
    """One tensor argument as data. ``values`` names a recipe of ``strategies.values``, or a file of elements."""

    shape: tuple[int, ...]
    dtype: str  # torch's name without "torch."
    values: str = NORMAL
    seed: int = 0
    layout: Layout = CONTIGUOUS
    specials: tuple[Special, ...] = ()

    def __post_init__(self) -> None:
        _non_negative("shape", self.shape)
        format_of(self.dtype)
        check_recipe(self.values, self.dtype)
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be in [0, 2^64), got {self.seed}")
        self.layout.check(self.shape)
        # msgspec leaves out a default only if it is the same object, which no string is that was unpickled: one spec,
        # one JSON.
        for name, default in (("layout", CONTIGUOUS), ("values", NORMAL)):
            if getattr(self, name) == default:
                msgspec.structs.force_setattr(self, name, default)
        for special in self.specials:
            special_bits(special.value, self.dtype)
