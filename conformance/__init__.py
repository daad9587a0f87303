"""The harness: cases as data, oracles, bounds and checks, and ``judge``, which applies them to one operator."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from conformance.shadow_report import Report


def judge(function: Callable[..., Any], **how: Any) -> None:
    """Judge an operator of your own against a reference in torch: one line of a test.

    ``judge(my_swiglu, reference=lambda x, g: silu(g) * x, arguments=("B T D", "B T D"), dtypes="bfloat16 float32")``
    draws calls, makes each in a process of its own, and compares the results with those of the reference in float64,
    within a bound that it derives from the reference (``conformance.error_analysis``). A case that fails is shrunk,
    saved to ``folder``, and judged first in the next run.

    :param function: The operator to judge: a function of a module, or of the test's own file.
    :param reference: The right results, composed of torch's functions.
    :param arguments: A shape, or a value, for each argument: see ``conformance.authoring.operator``, which also has
        ``like``, ``keywords``, ``dtypes``, ``sizes``, ``bound`` and ``strides``.
    :param name: The name of the op, where it is not the function's.
    :param refused: Whether calls that the reference refuses are judged: they have to raise, too.
    :param checks: The names of the checks to make; default: all.
    :param profile: "smoke" (15 calls of each dtype, a few seconds), "ci" (100) or "deep" (1000, others each time);
        default: the value of ``CONFORMANCE_PROFILE``, else "smoke".
    :param examples: Calls of each dtype, instead of the profile's.
    :param seed: The seed of the drawn calls; default: always the same, but for "deep".
    :param device: "auto" (a GPU if there is one), "cpu" or "cuda".
    :param isolated: Whether it is called in a process of its own. False: in this one, for a function that another
        process cannot find; what crashes or hangs then ends the test.
    :param timeout: Seconds for one case.
    :param folder: Where failing cases are saved; default: ``failures``.
    :raises conformance.one_line.Judgement: Something is wrong; an AssertionError, with the suite's messages.
    :raises conformance.error_analysis.NoRule: No bound can be derived: say ``bound=``.
    :raises ValueError: The call or the function is not described well.
    """
    __tracebackhide__ = True
    # Imported late: the judged process may import this module too, with the test's file.
    from conformance.one_line import judge

    judge(function, **how)


def shadow(
    judged: Any,
    *,
    model: Any = None,
    ops: str | Collection[str] | None = None,
    report: Path | str | None = "shadow",
    every: int = 1,
    limit: int | None = None,
    seconds: float | None = None,
    slowdown: float | None = None,
    keep: int = 0,
    semantics: str = "cuda",
) -> AbstractContextManager[Report]:
    """Judge the calls that a running model makes: ``with shadow("their.module", model=model) as report: model(x)``.

    Each call is made as it would be, and judged beside torch on copies of its operands, within the operator's bound.
    One that leaves it is named with the module that made it, and saved as a case with its data; nothing is raised.

    :param judged: What may be wrong: a module, its name (also ``module:object``), or an object, whose functions are
        operators by their names; or a ``torch.nn.Module``, of which every call of torch's functions, methods and
        ``torch.ops`` that is one of an operator is judged.
    :param model: The model whose modules are named, where ``judged`` is not one.
    :param ops: The names of the operators that are judged, or one; default: all. ``linear`` is one for a model.
    :param report: The folder of ``report.json`` and of the failing cases; None: nothing is written.
    :param every: Of the calls of an operator by a module, each so-manieth is judged, the first one always.
    :param limit: Calls that are judged at most.
    :param seconds: What judging may take in all; the call in which that is passed is finished.
    :param slowdown: 3 lets judging take twice the time of all else in the block, 2 as long, and so on; the model may be
        slower in the block than alone.
    :param keep: So many judged calls of each operator in each module are saved, right or not, in the folder
        ``workload`` of ``report``: the suite replays them for any implementation (``--workload``).
    :param semantics: Whose semantics count where torch's CPU and CUDA differ: "cuda", or for calls on the CPU "cpu".
    :return: A context that gives a ``conformance.shadow_report.Report``.
    :raises ValueError: ``ops`` or ``semantics`` has a name that is not among them, ``every`` is below 1, or ``keep``
        has no ``report``.
    :raises conformance.implementations.ImplementationError: There is no such module, or it has no operator's function.
    :raises strategies.stored.StoredError: There is no safetensors, and ``report`` is not None.
    """
    # Only now, as for ``judge``.
    from conformance.shadowing import Shadow

    return Shadow(
        judged,
        model=model,
        ops=ops,
        report=report,
        every=every,
        limit=limit,
        seconds=seconds,
        slowdown=slowdown,
        keep=keep,
        semantics=semantics,
    )
