"""Helpers of adapters for array libraries, which have no ``out=`` and promote dtypes by rules of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from conformance.implementations import NotProvided


def plain(out: torch.Tensor | None = None, inplace: bool = False) -> None:
    """Raise NotProvided where the result is to be written to a tensor that is given."""
    if out is not None or inplace:
        raise NotProvided("the library writes no result to memory that it is given")


def none_of(arguments: Mapping[str, Any]) -> None:
    """Raise NotProvided where one of these is given."""
    if given := [name for name, value in arguments.items() if value is not None]:
        raise NotProvided(f"the library has no {' and no '.join(given)}")


def promoted(*operands: Any) -> list[torch.Tensor]:
    """Operands in the dtype to which torch promotes them, as torch casts them before it computes.

    :raises NotProvided: A Python number is none of that dtype. torch rounds it to the dtype that it computes in.
    """
    dtype = _promoted_dtype(operands)
    return [one.to(dtype) if isinstance(one, torch.Tensor) else _number(one, dtype) for one in operands]


def floating(input: torch.Tensor) -> torch.Tensor:
    """Return the input in a floating-point dtype: torch casts integers to the default one for such functions."""
    return input if input.is_floating_point() else input.to(torch.get_default_dtype())


def as_it_is(input: torch.Tensor) -> torch.Tensor:
    """Return the input."""
    return input


class Elementwise:
    """Makes functions with torch's signatures of a library's own."""

    def __init__(self, library: str, made: Callable[..., torch.Tensor]) -> None:
        """Take the name of the library, and what makes a call of its function with tensors."""
        self._library, self._made = library, made

    def unary(
        self, function: Callable[..., Any], prepared: Callable[[torch.Tensor], torch.Tensor]
    ) -> Callable[..., torch.Tensor]:
        """Return a function of one operand, which ``prepared`` casts."""

        def call(input: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
            plain(out)
            return self._made(function, prepared(input))

        return call

    def binary(self, function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        """Return a function of two operands."""

        def call(input: Any, other: Any, *, out: torch.Tensor | None = None) -> torch.Tensor:
            plain(out)
            return self._made(function, *promoted(input, other))

        return call

    def scaled(self, function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        """Return a function of two operands that has an ``alpha``, which has to be 1."""

        def call(input: Any, other: Any, *, alpha: Any = 1, out: torch.Tensor | None = None) -> torch.Tensor:
            plain(out)
            if alpha != 1:
                raise NotProvided(f"{self._library} has no alpha")
            return self._made(function, *promoted(input, other))

        return call

    def activation(self, function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        """Return a function of one operand that torch makes in place, too."""

        def call(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
            plain(inplace=inplace)
            return self._made(function, input)

        return call


def _promoted_dtype(operands: tuple[Any, ...]) -> torch.dtype:
    first, *rest = operands
    dtype = torch.result_type(first, rest[0]) if rest else first.dtype
    if len(rest) > 1:
        dtypes = {torch.result_type(first, one) for one in rest}
        if len(dtypes) > 1:
            raise NotProvided("operands of three dtypes")
    return dtype


def _number(value: Any, dtype: torch.dtype) -> torch.Tensor:
    try:
        tensor = torch.tensor(value, dtype=dtype)
    except (RuntimeError, OverflowError):
        raise NotProvided(f"{value} is no {dtype}") from None
    if tensor.item() != value and not math.isnan(value):
        raise NotProvided(f"{value} is no {dtype}")
    return tensor
