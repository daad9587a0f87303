"""The check of arguments that torch's signature refuses: a keyword that there is not, a set for dims, an array for a
tensor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from conformance import argument_calls, forms
from conformance import spec as specs
from conformance.checks.call_record import FAILED, PASSED, Finding, Outcome, Trial
from conformance.checks.contexts import in_context
from conformance.checks.invariance import entangled
from conformance.checks.kinds import error_of_plain_call, far, is_ordinary
from conformance.checks.result import judged

Edit = tuple[str, Any, Any]
"""An edit has the name of ``argument_calls`` for it, the place or name of the argument, and the details."""
Edits = dict[str, Edit]
"""Edits have names, which messages tell."""
AS_IT_IS = "as it is"
UNKNOWN = "unknown_keyword"
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def signature(trial: Trial) -> Finding:
    """Check that arguments that torch refuses are refused, by any exception and with nothing written: one keyword more,
    a misspelt one, an argument less, a tensor behind the positional ones; other types for dims, numbers, flags, words,
    tensors and dtypes; operands of float8. Where torch takes other types for dims, numbers or flags, or a type of
    Python's as the dtype, so does the implementation, with torch's result, or it refuses them."""
    wanted = edits(trial)
    context = {"kind": argument_calls.KIND, "edits": list(wanted.values())}
    answers = [_told(trial.theirs(function=function, context=context)) for function in _functions(trial)]
    ours = _told(trial.bare(context=context))
    if not ours:
        return Finding("signature", FAILED, "with other arguments: the call ended otherwise than by an exception")
    known = [one for one in answers if one and not _is_refused(one[0])]
    # torch's CPU lacks some calls that CUDA takes.
    if _is_refused(ours[0]) or len(known) < len(answers):
        return Finding("signature", PASSED)
    compares = "distribution" not in trial.spec.checks and is_ordinary(trial)
    # Where torch's plain answer is not right, its others are no measure either.
    is_measure = compares and judged(trial, trial.reference).status != FAILED
    slack = error_of_plain_call(trial) if is_measure else None
    has_dtype = not _is_refused(answers[0][[*wanted].index("dtype=float")])
    for place, (what, edit) in enumerate(wanted.items()):
        # Who has a ``dtype`` that torch has not may take what it likes.
        if edit[0] == argument_calls.DTYPE and not has_dtype:
            continue
        if message := _wrong(edit, ours[place], [one[place] for one in answers], slack):
            # What torch's devices answer in two ways is undefined.
            elsewhere = _told(trial.theirs(context=context, on_cpu=True))[place : place + 1]
            both = elsewhere and not _is_refused(elsewhere[0]) and not _is_refused(answers[0][place])
            if both and _wrong(edit, answers[0][place], elsewhere, slack):
                continue
            return trial.excused(Finding("signature", FAILED, f"{what}: {message}"), trial.case, "signature")
    return Finding("signature", PASSED)


def has_signature(trial: Trial) -> bool:
    """Tell whether ``signature`` applies to a call: to a small one of a function of torch's own, in the plain form,
    that writes to no operand, and whose operands are apart. The reference is torch's or this package's: one of a
    user's own may have another signature."""
    if (getattr(trial.spec.reference, "__module__", None) or "torch").partition(".")[0] not in ("torch", "conformance"):
        return False
    apart = not trial.spec.writes(trial.case) and not entangled(trial.case)
    return apart and in_context(trial) and forms.is_torchs(trial.case.op)


def edits(trial: Trial) -> Edits:
    """Return what is done with the arguments of a call, one after the other."""
    args, kwargs = forms.bind(trial.case, trial.inputs)
    signature, names = forms.signature(trial.case.op), specs.parameters(trial.case.op)
    found: Edits = {AS_IT_IS: ("", None, None), f"the keyword {UNKNOWN}": (argument_calls.KEYWORD, UNKNOWN, None)}
    # torch's table leaves some parameters out.
    optional = {name: one.default for name, one in signature.items() if one.default is not inspect.Parameter.empty}
    for name, default in {**optional, **dict.fromkeys(("out", *kwargs))}.items():
        misspelt = name[:1] + name[2:]
        if len(name) > 2 and misspelt not in signature:
            value = default if isinstance(default, bool | int | float | str) else None
            found[f"the keyword {misspelt}"] = argument_calls.KEYWORD, misspelt, value
    if len(args) > 1:
        found["without its last positional argument"] = argument_calls.DROPPED, len(args) - 1, None
    found |= _behind(trial, args, kwargs)
    for key, value in [*enumerate(args), *kwargs.items()]:
        name = key if isinstance(key, str) else [*names, *[f"argument {key}"] * len(args)][key]
        is_flag = type(value) is bool and _is_flag(name, signature)
        kind = "flag" if is_flag else _kind(name, value)
        for other in argument_calls.TYPES.get(kind, ()):
            found[f"{name} as {other}"] = argument_calls.CHANGED, key, (kind, other)
    found |= {f"dtype={name}": (argument_calls.DTYPE, None, name) for name in argument_calls.DTYPES}
    if any(one.is_floating_point() for one in trial.inputs):
        found |= {f"operands of {name}": (argument_calls.FLOAT8, None, name) for name in _FLOAT8}
    return found


def _behind(trial: Trial, args: Sequence[Any], kwargs: dict[str, Any]) -> Edits:
    """Return the calls with a tensor like the result behind the positional arguments, those that are given, and all
    that torch has."""
    result, *_ = trial.reference.tensors()
    place = list(result.shape), str(result.dtype).removeprefix("torch."), str(result.device)
    found: Edits = {"a tensor behind the positional arguments": (argument_calls.BEHIND, place, [])}
    left = specs.parameters(trial.case.op)[len(args) :]
    defaults = [forms.default(trial.case.op, name) for name in left]
    plain = all(one is None or isinstance(one, bool | int | float | str) for one in defaults)
    if left and plain and not kwargs.keys() & {*left}:
        found["a tensor behind all positional arguments"] = argument_calls.BEHIND, place, defaults
    return found


def _is_flag(name: str, signature: Mapping[str, inspect.Parameter]) -> bool:
    """Tell whether a bool is a flag and no number: the parameter's default is one, too, or torch's table, which leaves
    some out, has no such parameter."""
    if name in signature:
        return type(signature[name].default) is bool
    return name not in forms.FACTORS


def _kind(name: str, value: Any) -> str:
    """Return what an argument is, as of ``argument_calls.TYPES``; empty: something else."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    whole = value if isinstance(value, tuple) else (value,)
    if (name == "dim" or isinstance(value, tuple)) and whole and all(type(one) is int for one in whole):
        return "dims"
    return {int: "number", float: "number", str: "word"}.get(type(value), "")


def _functions(trial: Trial) -> list[Callable[..., Any]]:
    """Return torch's functions of this name, of which one may take what another one refuses, and the reference."""
    found = [getattr(module, trial.case.op, None) for module in (torch, torch.nn.functional)]
    return [trial.spec.reference, *(one for one in found if one is not None and one is not trial.spec.reference)]


Answer = tuple[str, torch.Tensor]


def _told(outcome: Outcome) -> list[Answer]:
    """Return what came of each call, in words, and the elements of its result; none where the calls did not end."""
    if outcome.error is not None or not isinstance(outcome.value, tuple):
        return []
    found = [one.cpu() for one in outcome.value]
    return [(bytes(said.tolist()).decode(), elements) for said, elements in zip(found[::2], found[1::2], strict=True)]


def _is_refused(answer: Answer) -> bool:
    return answer[0].startswith(argument_calls.REFUSED)


def _wrong(edit: Edit, ours: Answer, answers: Sequence[Answer], slack: float | None) -> str:
    """Say what is wrong with a call; empty: nothing.

    :param slack: As of ``kinds.far``; None: elements are not compared.
    """
    action, _, details = edit
    of_python = action == argument_calls.DTYPE and details in argument_calls.OF_PYTHON
    if _is_refused(ours):
        written = argument_calls.WRITTEN in ours[0]
        return ours[0] if written and not any(argument_calls.WRITTEN in one[0] for one in answers) else ""
    if all(map(_is_refused, answers)):
        # Of which dtypes there is a kernel differs between torch's devices.
        return "" if of_python else f"took what torch {answers[0][0].replace('refused', 'refuses', 1)}"
    types = action == argument_calls.CHANGED and details[0] in ("dims", "number", "flag")
    if _is_refused(answers[0]) or not (types or of_python):
        return ""
    if ours[0] != answers[0][0]:
        return f"the result is {ours[0]}; torch's is {answers[0][0]}"
    alike = types and ours[1].shape == answers[0][1].shape and ours[1].numel() > 0
    return far(ours[1], answers[0][1], slack) if slack is not None and alike else ""
