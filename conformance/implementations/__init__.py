"""What can be judged: any importable module, or object in a module, whose attributes are functions with torch's
signatures; and torch itself."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from conformance import spec as specs

DEFAULT = "ntops.torch"
TORCH = "torch"
TORCH_SPACES = (torch.nn.functional, torch)
CLAIMS = ("deterministic", "layout_invariant", "batch_invariant")
"""Checks that are failures only for who claims them; for others they are measured."""
FIXED = ":fixed"
"""After the name of one of ``CLAIMS``: it holds where the kernels' configuration is fixed."""

KNOWN_CLAIMS: Mapping[str, Mapping[str, Collection[str]]] = {
    # softmax runs along any dim of any strides without a copy; compiled, the order of its sums follows them.
    # Products take other blocks for few rows. Attention splits keys where a batch is small, and takes other blocks
    # where rows are not aligned.
    "ntops.torch": {
        "*": CLAIMS,
        "softmax": ("deterministic",),
        **dict.fromkeys(
            ("mm", "addmm", "bmm", "matmul", "fused_gated_mlp"),
            ("deterministic", "layout_invariant", f"batch_invariant{FIXED}"),
        ),
        "scaled_dot_product_attention": ("deterministic", f"batch_invariant{FIXED}"),
    },
    # torch breaks the other two for some ops (sums are split differently for other layouts and batch sizes).
    TORCH: {"*": ("deterministic",)},
}
"""Claims per op of implementations that do not declare ``conformance_claims`` themselves; "*" is any other op."""


def _of_ntops(op: str, number: int | None = None) -> AbstractContextManager[Sequence[str]]:
    from ntops.host import configuration

    return configuration.fixed(number)


KNOWN_CONFIGURATIONS: Mapping[str, Callable[..., AbstractContextManager[Sequence[str]]]] = {"ntops.torch": _of_ntops}
"""For implementations that do not have ``conformance_configurations`` themselves."""


@contextlib.contextmanager
def _settings_of_ntops(op: str, number: int | None = None) -> Generator[Sequence[str]]:
    import ntops.torch
    from ntops._runtime import INTERPRETED
    from ntops.host import measuring

    settings = _SETTINGS_INTERPRETED if INTERPRETED else _SETTINGS
    names = [f"{name}={value}" + f", the fastest being number {one}" * bool(one) for name, value, one in settings]
    if number is None:
        yield names
        return
    name, value, one = settings[number]
    set_default = getattr(ntops.torch, f"set_default_{name}")
    before = getattr(ntops.torch, f"get_default_{name}")()
    set_default(value)
    try:
        with measuring.assumed(one) if one else contextlib.nullcontext():
            yield names
    finally:
        set_default(before)


_CANDIDATES = tuple(("max_num_configs", 16, one) for one in range(1, 16))
"""What may be the fastest of the configurations that are measured; number 0 is the library's choice."""
_SETTINGS = (
    *(("num_warps", value, 0) for value in (1, 2, 4, 8, 16)),
    *(("num_stages", value, 0) for value in (1, 2, 3, 4, 5)),
    *(("max_num_configs", value, 0) for value in (1, 2, 3, 16)),
    *_CANDIDATES,
)
_SETTINGS_INTERPRETED = (("num_warps", 16, 0), ("num_stages", 5, 0), *_CANDIDATES)
"""Where nothing is measured, and warps and stages change little of what a kernel does."""

KNOWN_SETTINGS: Mapping[str, Callable[..., AbstractContextManager[Sequence[str]]]] = {"ntops.torch": _settings_of_ntops}
"""For implementations that do not have ``conformance_settings`` themselves."""


class ImplementationError(ValueError):
    """A name under which nothing that can be judged is found. The message is for people."""


class NotProvided(NotImplementedError):
    """What an adapter raises for a call of which its library has no form: it is counted as not provided."""


@dataclasses.dataclass(frozen=True)
class Implementation:
    """Something that can be judged, by the name under which ``load`` finds it again."""

    name: str
    provider: Any
    claimed: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)

    def function(self, op: str) -> Callable[..., Any] | None:
        """The function with the op's torch signature, or None: not provided."""
        if self.provider is torch:
            return torch_function(op)
        function = getattr(self.provider, op, None)
        return function if callable(function) else None

    def claims(self, op: str) -> frozenset[str]:
        """Which of ``CLAIMS`` hold for the op, some of them ``FIXED``, by the implementation's own word."""
        return frozenset(self.claimed.get(op, self.claimed.get("*", ())))

    def configurations(self, op: str, number: int | None = None) -> AbstractContextManager[Sequence[str]]:
        """A context of calls of the op, in the configuration of a number; None: in the one that each gets.

        It gives a list that holds, after a call, the names of the configurations that the call could have: none where
        the implementation does not say.
        """
        known = KNOWN_CONFIGURATIONS.get(self.name)
        offered = getattr(self.provider, "conformance_configurations", known)
        return contextlib.nullcontext(()) if offered is None else offered(op, number)

    def settings(self, op: str, number: int | None = None) -> AbstractContextManager[Sequence[str]]:
        """A context of calls of the op, under the setting of a number; None: under none.

        It gives the names of the settings, "name=value" and more, that a user of the implementation may have.
        """
        known = KNOWN_SETTINGS.get(self.name)
        offered = getattr(self.provider, "conformance_settings", known)
        return contextlib.nullcontext(()) if offered is None else offered(op, number)


def load(name: str) -> Implementation:
    """The implementation called ``name``: ``torch``, a module, or ``module:object``.

    Its attribute ``conformance_claims``, if it has one, maps op names (or "*") to names among ``CLAIMS``, some of them
    ``FIXED``; ``conformance_configurations`` is as ``Implementation.configurations``, ``conformance_settings`` as
    ``Implementation.settings``.
    Raises ImplementationError: nothing importable by this name, or claims that are not of that form.
    """
    if name == TORCH:
        return Implementation(name, torch, KNOWN_CLAIMS[TORCH])
    module_name, _, path = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        provider: Any = importlib.import_module(module_name)
    # Importing runs somebody else's code: whatever stops it is for the user to read, not a crash of the harness.
    except (Exception, SystemExit) as error:
        raise ImplementationError(
            f"implementation {name!r}: importing {module_name!r} failed: {type(error).__name__}: {error}. "
            f"Valid are {DEFAULT}, {TORCH}, any module, or module:object"
        ) from error
    for attribute in filter(None, path.split(".")):
        try:
            provider = getattr(provider, attribute)
        except AttributeError:
            raise ImplementationError(f"implementation {name!r}: {module_name} has no {path!r}") from None
    return Implementation(name, provider, _claims(name, provider))


def torch_function(op: str) -> Callable[..., Any] | None:
    """torch's function for the op, or None where neither of its namespaces has one of this name. The one that the
    OpSpec refers to: torch.relu and torch.nn.functional.relu, for one, differ in their arguments."""
    spec = specs.registry().get(op)
    return spec.reference if spec and any(hasattr(space, op) for space in TORCH_SPACES) else None


def _claims(name: str, provider: Any) -> Mapping[str, Collection[str]]:
    claims = getattr(provider, "conformance_claims", KNOWN_CLAIMS.get(name, {}))
    if not isinstance(claims, Mapping):
        raise ImplementationError(f"implementation {name!r}: conformance_claims maps op names to names of {CLAIMS}")
    for op, names in claims.items():
        if isinstance(names, str) or {claim.removesuffix(FIXED) for claim in names} - set(CLAIMS):
            of = f"{CLAIMS}, with or without {FIXED!r}"
            raise ImplementationError(f"implementation {name!r}: conformance_claims[{op!r}] holds names of {of}")
    return claims
