"""Is a random mask what it should be? How many elements are kept, and whether any depend on others.

Each statistic counts successes among independent trials, so that it is binomial, and alarms by Chernoff's bound in
Hoeffding's form (W. Hoeffding, Probability inequalities for sums of bounded random variables, JASA 58, 1963): of n
trials of probability p, a share as far from p as q has a probability of at most 2 exp(-n KL(q || p)).

Copied into the ``repro_<id>.py`` scripts of random calls, so it needs torch and nothing else.
"""

import math
from collections.abc import Iterator, Sequence

import torch

ALARM = 5e-15
"""The probability at most with which one statistic of a right mask alarms. There are under two hundred in a call, so
that a thousand cases alarm with less than 1e-9."""


def faults(masks: Sequence[torch.Tensor], seen: torch.Tensor, chance: float) -> Iterator[str]:
    """What is wrong with the masks of calls that follow each other.

    :param masks: For each call a bool tensor, True where an element was kept.
    :param seen: False where results do not show it.
    :param chance: The probability with which each element is to be kept.
    """
    alike = chance**2 + (1 - chance) ** 2
    flat = seen.reshape(-1)
    for number, mask in enumerate(masks):
        kept = mask.reshape(-1)
        if message := unlikely(kept[flat], chance):
            yield f"call {number} keeps {message}"
        for lag, tries in [(lag, 1) for lag in lags(seen.shape)] + [(lag, len(kept)) for lag in suspects(kept, flat)]:
            # The pairs of one start share no element, so they are independent.
            for start in (0, lag):
                a, b = pairs(kept[start:], lag)
                shown = torch.logical_and(*pairs(flat[start:], lag))
                if message := unlikely((a == b)[shown], alike, tries):
                    yield f"of elements that are {lag} apart, call {number} treats alike {message}"
    for number, mask in enumerate(masks):
        yield from _windows(mask.reshape(-1), flat, chance, number)
    for number, mask in enumerate(masks[1:], 1):
        if message := unlikely((mask == masks[0])[seen], alike):
            yield f"calls 0 and {number} treat alike {message}"
        yield from _shifted(masks[0].reshape(-1), mask.reshape(-1), flat, alike, number)


def _windows(kept: torch.Tensor, seen: torch.Tensor, chance: float, number: int) -> Iterator[str]:
    """Test three and four neighbours, which may depend on each other though no two do.

    Of n independent elements an odd number is kept with a probability of (1 - (1 - 2 chance)^n) / 2.
    """
    for size in (3, 4):
        for start in range(size):
            count = (len(kept) - start) // size
            part, shown = (mask[start : start + count * size].view(count, size) for mask in (kept, seen))
            odd = part.sum(1)[shown.all(1)] % 2 == 1
            if message := unlikely(odd, (1 - (1 - 2 * chance) ** size) / 2):
                yield f"of {size} neighbours, from {start} on, call {number} keeps an odd number {message}"


def _shifted(first: torch.Tensor, later: torch.Tensor, seen: torch.Tensor, alike: float, number: int) -> Iterator[str]:
    """Whether a later mask is the first one moved on or turned around: no pair of elements shares one with another, so
    that all are independent."""
    if message := unlikely((first == later.flip(0))[seen & seen.flip(0)], alike):
        yield f"call {number} turned around and call 0 treat alike {message}"
    total = len(first)
    for one, other, what in ((first, later, "beyond"), (later, first, "before")):
        for lag in suspects(one, seen, other):
            message = unlikely((one[: total - lag] == other[lag:])[seen[: total - lag] & seen[lag:]], alike, 2 * total)
            if message:
                yield f"of elements of call {number} that are {lag} {what} those of call 0, they treat alike {message}"


def lags(shape: Sequence[int]) -> list[int]:
    """Distances at which elements are compared, row-major: one step in each dim, and powers of two, where what a block
    of a kernel draws may begin again."""
    total = math.prod(shape)
    steps = {math.prod(shape[dim + 1 :]) for dim in range(len(shape))}
    return sorted(lag for lag in steps | {1 << k for k in range(total.bit_length())} if 0 < lag < total)


def suspects(kept: torch.Tensor, seen: torch.Tensor, other: torch.Tensor | None = None) -> list[int]:
    """The three distances at which elements are most alike, or most unlike, of all that leave a pair; by the theorem of
    Wiener and Khinchin. They are chosen by what is then tested, so that each counts for as many tests as there are.

    ``other``: the mask whose elements lie that far beyond those of ``kept``; None: the same."""
    total = len(kept)
    if not seen.any():
        return []
    spectra = [
        torch.fft.rfft(torch.where(seen, mask.double() - mask[seen].double().mean(), 0.0), 2 * total)
        for mask in ((kept,) if other is None else (kept, other))
    ]
    alike = torch.fft.irfft(spectra[0].conj() * spectra[-1], 2 * total)[: total // 2 + 1]
    alike[0] = 0
    scores = alike.abs() / (total - torch.arange(len(alike))).double().sqrt()
    return [lag for lag in scores.topk(min(3, len(scores))).indices.tolist() if lag]


def pairs(mask: torch.Tensor, lag: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the second elements of disjoint pairs that are ``lag`` apart."""
    count = len(mask) // (2 * lag)
    disjoint = mask[: count * 2 * lag].view(count, 2, lag)
    return disjoint[:, 0], disjoint[:, 1]


def surprise(successes: int, trials: int, probability: float) -> float:
    """At most how probable it is that the share of successes is as far from ``probability`` as this, either side."""
    share, divergence = successes / trials, 0.0
    for found, wanted in ((share, probability), (1 - share, 1 - probability)):
        if found:
            divergence += found * math.log(found / wanted)
    return min(1.0, 2 * math.exp(-trials * divergence))


def unlikely(successes: torch.Tensor, probability: float, tries: int = 1) -> str:
    """A message where so many successes are too improbable, else nothing. ``tries``: the most suspect of how many."""
    count, trials = int(successes.sum()), successes.numel()
    if not trials or tries * surprise(count, trials, probability) >= ALARM:
        return ""
    return f"{count} of {trials}, where {probability * trials:.6g} are expected"
