"""A case is data: an op and its arguments, JSON in and out, with a stable id."""

from __future__ import annotations

import msgspec

from strategies.specs import TensorSpec


class NonFinite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="float"):
    """A float that JSON cannot write: "nan", "inf" or "-inf"."""

    value: str


class DType(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="dtype"):
    """A torch dtype by its name without "torch."."""

    name: str


class Same(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="same"):
    """The very tensor object of an earlier operand (operands are numbered over args, then kwargs by name)."""

    operand: int


Argument = None | bool | int | float | str | tuple[int, ...] | TensorSpec | NonFinite | DType | Same


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One call of one op.

    ``digests`` has one digest of each tensor operand, so that a replay that no longer has the same inputs says so;
    ``note`` says why the case is kept. Neither takes part in the id.
    """

    schema: int = 1
    op: str
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument] = {}
    digests: tuple[str, ...] = ()
    note: str = ""
