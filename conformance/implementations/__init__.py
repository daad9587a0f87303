"""Implementations that can be judged: any importable module, or object in a module, whose attributes are functions with
torch's signatures; and torch itself."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import torch

from conformance import runtime
from conformance import spec as specs
from conformance.calls import Local
from conformance.calls import NotProvided as NotProvided
from conformance.remote_calls import Judged, Remote

DEFAULT = "ntops.torch"
TORCH = "torch"
TORCH_SPACES = (torch.nn.functional, torch)
CLAIMS = ("deterministic", "layout_invariant", "batch_invariant", "gradients", "fake", "compiled")
CLAIMS += ("autocast", "vmap", "transforms", "opcheck", "export", "graph", "stream", "device")
"""Checks that fail only implementations that claim them; for others they are measured. For ``gradients`` that holds
where there are none; wrong ones fail. Those after it are made for who claims them alone."""
FIXED = ":fixed"
"""The suffix of a name of ``CLAIMS``: the claim holds where the kernels' configuration is fixed."""

TORCH_ITSELF = "conformance.implementations.torch_itself"
"""The module that has torch's functions under the names of the ops."""


class ImplementationError(ValueError):
    """A name under which nothing that can be judged is found. The message is for people."""


@dataclasses.dataclass(frozen=True)
class Implementation:
    """Something that can be judged, by the name under which ``load`` finds it again."""

    name: str
    provider: Any
    """The object that has the functions; in another process, stand-ins for them."""
    claimed: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """For each op, why most of its calls are left out."""
    judged: Judged | None = None
    """The process where it was imported; None: this one."""
    kernels: str = ""
    """How Triton's kernels run: "vectorised" or "interpreted", without a GPU; else empty."""

    changed: Sequence[str] = ()
    """The state that its import changed, and that others' results depend on; it was restored."""

    def function(self, op: str) -> Callable[..., Any] | None:
        """Return the function with the op's torch signature; None: not provided."""
        function = getattr(self.provider, op, None)
        return function if callable(function) else None

    def maker(self, op: str) -> Local | Remote:
        """Return the object that makes calls of an op that is provided."""
        function = self.function(op)
        assert function is not None
        return function if isinstance(function, Remote) else Local(function, self.provider)

    def claims(self, op: str) -> frozenset[str]:
        """Return the ``CLAIMS`` that the implementation makes for the op, some of them ``FIXED``."""
        return frozenset(self.claimed.get(op, self.claimed.get("*", ())))

    def configurations(self, op: str, number: int | None = None) -> AbstractContextManager[Sequence[str]]:
        """Return a context of calls of the op in this process, in the configuration of a number; None: in the one that
        each gets.

        It gives a list that holds, after a call, the names of the configurations that the call could have: none where
        the implementation does not say.
        """
        offered = getattr(self.provider, "conformance_configurations", None)
        return contextlib.nullcontext(()) if offered is None else offered(op, number)

    def settings(self, op: str) -> Sequence[str]:
        """Return the names of the settings, "name=value" and more, that a user of the implementation may have."""
        if self.judged is not None:
            return self.judged.settings(op)
        offered = getattr(self.provider, "conformance_settings", None)
        with contextlib.nullcontext(()) if offered is None else offered(op, None) as names:
            return [*names]

    def numbers(self, op: str) -> Sequence[float]:
        """Return the numbers in the code of an op that is provided, as of ``code_numbers.of``."""
        return self.maker(op).numbers()


def load(name: str) -> Implementation:
    """Load the implementation called ``name``: ``torch``, a module, or ``module:object``; imported in this process.

    Its attribute ``conformance_claims``, if it has one, maps op names (or "*") to names among ``CLAIMS``, some of them
    ``FIXED``; ``conformance_left_out`` maps op names (or "*") to why most calls raise ``NotProvided``.
    ``conformance_configurations(op, number)`` is as ``Implementation.configurations``;
    ``conformance_settings(op, number)`` is a context of calls of the op under the setting of a number (None: under
    none), which gives the names of all.
    Raises ImplementationError: nothing importable by this name, or declarations that are not of that form.
    """
    provider, problem = runtime.load(module_of(name))
    if problem:
        raise _unusable(problem)
    return Implementation(name, provider, *_declared(name, runtime.declared(provider)))


def module_of(name: str) -> str:
    """Return the name of the module that is imported for an implementation."""
    return TORCH_ITSELF if name == TORCH else name


def load_judged(
    name: str, judged: Judged, device: torch.device, functions: Mapping[str, str] | None = None
) -> Implementation:
    """Load an implementation in the judged process. ``functions``: for each op the name of its function, where that is
    another one.

    Raises ImplementationError and ``calls.Lost``."""
    functions = functions or {op: op for op in specs.registry()}
    about = judged.load(module_of(name), device, list(functions.values()))
    if about.problem:
        raise _unusable(about.problem)
    provider = SimpleNamespace(
        **{op: Remote(judged, function) for op, function in functions.items() if function in about.provides}
    )
    return Implementation(name, provider, *_declared(name, about.declared), judged, about.kernels, about.changed)


def _unusable(problem: str) -> ImplementationError:
    return ImplementationError(f"{problem}. Valid are {DEFAULT}, {TORCH}, any module, or module:object")


def torch_function(op: str) -> Callable[..., Any] | None:
    """Return torch's function for the op, or None where neither of its namespaces has one of this name. It is the one
    that the OpSpec refers to: torch.relu and torch.nn.functional.relu, for one, differ in their arguments."""
    spec = specs.registry().get(op)
    return spec.reference if spec and any(hasattr(space, op) for space in TORCH_SPACES) else None


def _declared(name: str, declared: Mapping[str, Any]) -> tuple[Mapping[str, Collection[str]], Mapping[str, str]]:
    return _claims(name, declared.get("conformance_claims", {})), _left_out(
        name, declared.get("conformance_left_out", {})
    )


def _claims(name: str, claims: Any) -> Mapping[str, Collection[str]]:
    if not isinstance(claims, Mapping):
        raise ImplementationError(f"implementation {name!r}: conformance_claims maps op names to names of {CLAIMS}")
    for op, names in claims.items():
        if isinstance(names, str) or {claim.removesuffix(FIXED) for claim in names} - set(CLAIMS):
            of = f"{CLAIMS}, with or without {FIXED!r}"
            raise ImplementationError(f"implementation {name!r}: conformance_claims[{op!r}] holds names of {of}")
    return claims


def _left_out(name: str, reasons: Any) -> Mapping[str, str]:
    if not isinstance(reasons, Mapping) or not all(isinstance(r, str) and r for item in reasons.items() for r in item):
        raise ImplementationError(f"implementation {name!r}: conformance_left_out maps op names to reasons")
    return reasons
