"""What a tensor argument is, as data: every draw of a strategy ends in these records.

They hold structure only (shape, layout recipe, dtype, value recipe, seed, planted specials), never elements,
so a case is small, readable and reproducible bit for bit on any machine. JSON in and out is msgspec's.
"""

from __future__ import annotations

import msgspec


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the elements of a logical shape lie in memory; built on a base buffer, then viewed.

    The view is made in this order: a dense buffer whose dims are stored in ``order`` (outermost first; empty
    means 0, 1, 2, ...), each dim ``i`` holding ``steps[i]`` times its size (empty means 1 everywhere) and sliced
    back with that step, dims in ``expanded`` holding one element and expanded (stride 0), and the whole
    starting ``offset`` elements into its storage.
    """

    order: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    expanded: tuple[int, ...] = ()
    offset: int = 0


class Special(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A special value planted at a linear index (row-major over the logical shape, modulo its size)."""

    index: int
    value: str  # "nan", "inf", "-inf", "-0", "max", "min", "tiny" (smallest subnormal), "-tiny"


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tensor", omit_defaults=True):
    """One tensor argument as data. ``values`` names a recipe of ``strategies.values``."""

    shape: tuple[int, ...]
    dtype: str  # torch's name without "torch."
    values: str = "normal"
    seed: int = 0
    layout: Layout = Layout()
    specials: tuple[Special, ...] = ()
