"""Group failures by cause: the check, the exception, and the feature of the call that most of them share."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from conformance import cases, features
from conformance.cases import Case
from conformance.runner import Verdict

ALSO = 8
"""The most failures of a group that are named beside the one that is shown."""
_PLAIN = ("tensor", "contiguous", "none", "plain", "equal", "False", "NoneType")
"""Classes of features that say nothing of a failure."""
_COMMON = ("dtype", "rank", "size", "row")
"""Groups of features of which every case has one. Of their classes only "empty" is told."""
_OF_TENSORS = ("size", "specials", "layout", "values")
_RAISED = re.compile(r"\braised (\w+)|\brefuses with (\w+)|\bended by (\w+)|\b(exit status \d+)")
"""The words of messages for what ended a call, or should have ended it."""


class Failed(msgspec.Struct, frozen=True):
    """One failure, as an item reports it."""

    message: str
    """The whole message, for people."""
    op: str = ""
    dtype: str = ""
    check: str = ""
    error: str = ""
    """The exception class or signal that the message tells of."""
    id: str = ""
    features: tuple[str, ...] = ()
    """The features of the call that a simple call has not."""
    known: bool = False
    """It is among the known failures, and no news."""

    @property
    def title(self) -> str:
        """The failure in one line."""
        what = f"{self.op} ({self.dtype}): {self.check}" if self.op else self.message.partition("\n")[0]
        return f"{what}{', known' if self.known else ''}{f', case {self.id}' if self.id else ''}"


class Group(msgspec.Struct, frozen=True):
    """Failures of one check, with one exception, that share a feature."""

    feature: str
    failures: list[Failed]

    @property
    def title(self) -> str:
        """Say in one line what failed, how often, and where."""
        first, count = self.failures[0], len(self.failures)
        if not first.check:
            return first.message.partition("\n")[0]
        times = f", {count} failures" if count > 1 else ""
        raised = f" ({first.error})" if first.error else ""
        places = (_listed("op", (f.op for f in self.failures)), _listed("dtype", (f.dtype for f in self.failures)))
        shared = f", all with {self.feature}" if self.feature and count > 1 else ""
        return f"{first.check}{raised}{times}{shared}: {'; '.join(filter(None, places))}"

    @property
    def others(self) -> str:
        """The ids of the failures that are not shown; empty where there are none."""
        ids = [failure.id for failure in self.failures[1:] if failure.id]
        more = f" and {len(ids) - ALSO} more" if len(ids) > ALSO else ""
        return ", ".join(ids[:ALSO]) + more


def of(case: Case, verdict: Verdict, message: str) -> Failed:
    """Return the failure of a case, with its cause as far as it is known."""
    finding = verdict.failure
    assert finding is not None
    found = _RAISED.search(finding.message)
    error = next(filter(None, found.groups())) if found else ""
    shown = notable(finding.case if finding.case is not None else case)
    return Failed(message, case.op, cases.dtype_of(case), finding.check, error, verdict.id, shown)


def groups(failures: Iterable[Failed]) -> list[Group]:
    """Group the failures by cause, the most frequent cause first; in each group the shortest message is first. A case
    counts once, saved or drawn.

    Within a check and an exception, those with the feature that most of them have are one group, and so on with the
    rest; failures that share no feature are grouped by op.
    """

    def what(failure: Failed) -> tuple[str, str, str]:
        return failure.check, failure.error, "" if failure.check else failure.message

    found = []
    once = {(failure.check, failure.error, failure.id or failure.message): failure for failure in failures}
    for _, alike in itertools.groupby(sorted(once.values(), key=what), key=what):
        rest = list(alike)
        # First by the contents and layouts of operands: other arguments differ from op to op.
        rest = _divide(rest, found, lambda failure: [f for f in failure.features if f.partition("=")[0] in _OF_TENSORS])
        rest = _divide(rest, found, lambda failure: [*failure.features, f"op={failure.op}"])
        found += [Group("", [failure]) for failure in rest]
    return sorted(found, key=lambda group: (-len(group.failures), group.title))


def _divide(rest: list[Failed], found: list[Group], features_of: Callable[[Failed], list[str]]) -> list[Failed]:
    """Move failures that share a feature from ``rest`` to ``found``. Return those that share none."""
    while rest:
        counts = Counter(feature for failure in rest for feature in features_of(failure))
        feature, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        if count < 2:
            break
        alike = [failure for failure in rest if feature in features_of(failure)]
        alike.sort(key=lambda failure: (len(failure.message), failure.id))
        found.append(Group("" if feature.startswith("op=") else feature, alike))
        rest = [failure for failure in rest if failure not in alike]
    return rest


def notable(case: Case) -> tuple[str, ...]:
    """Return the features of a call that a simple call has not, as they are written, without the names of operands."""
    shown = []
    for group, classes in features.of_arguments(case).items():
        ordinal, _, kind = group.partition(" ")
        name = kind or ("" if ordinal in features.ORDINALS else ordinal)
        told = ("empty",) if name in _COMMON else classes
        shown += [f"{name}={one}" for one in classes if name and one in told and one not in _PLAIN]
    return tuple(dict.fromkeys(shown))


def _listed(what: str, names: Iterable[str], most: int = 6) -> str:
    found: Sequence[str] = sorted(set(names))
    if len(found) > most:
        return f"{len(found)} {what}s, {', '.join(found[:most])} among them"
    return ", ".join(found)
