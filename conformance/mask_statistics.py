"""Test whether a random mask is right: how many elements it keeps, and whether any depend on others.

Each statistic counts successes among independent trials, so that it is binomial, and alarms by Chernoff's bound in
Hoeffding's form (W. Hoeffding, Probability inequalities for sums of bounded random variables, JASA 58, 1963): of n
trials of probability p, a share as far from p as q has a probability of at most 2 exp(-n KL(q || p)).

Copied into the ``repro_<id>.py`` scripts of random calls, so it needs torch and nothing else.
"""

import math
from collections.abc import Iterator, Sequence

import torch

ALARM = 5e-15
"""The largest probability with which one statistic of a right mask alarms. A call has under two hundred, so that a
thousand cases alarm with less than 1e-9."""
FEW, OFTEN = 64, 150
"""The most elements of a call that is repeated, and the most repetitions."""


def faults(masks: Sequence[torch.Tensor], seen: torch.Tensor, chance: float) -> Iterator[str]:
    """Yield what is wrong with the masks of calls that follow each other.

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
    """Test whether a later mask is the first one shifted or reversed: no two of the compared pairs share an element, so
    that all are independent."""
    if message := unlikely((first == later.flip(0))[seen & seen.flip(0)], alike):
        yield f"call {number} turned around and call 0 treat alike {message}"
    total = len(first)
    for one, other, what in ((first, later, "beyond"), (later, first, "before")):
        for lag in suspects(one, seen, other):
            message = unlikely((one[: total - lag] == other[lag:])[seen[: total - lag] & seen[lag:]], alike, 2 * total)
            if message:
                yield f"of elements of call {number} that are {lag} {what} those of call 0, they treat alike {message}"


def enough(chance: float, elements: int) -> int:
    """Return how many calls show whether one of so many elements is kept always, or never; 0 where that takes more than
    ``OFTEN`` or there are more than ``FEW``."""
    likelier = max(chance, 1 - chance)
    if not 0 < elements <= FEW or not 0 < likelier < 1:
        return 0
    count = math.ceil(math.log(ALARM / (2 * elements)) / math.log(likelier))
    return count if count <= OFTEN else 0


def entropy(chance: float) -> float:
    """Return the collision entropy of one element in bits: two independent masks agree in n elements with a probability
    of 2^(-n entropy)."""
    return -math.log2(chance**2 + (1 - chance) ** 2)


def favoured(masks: Sequence[torch.Tensor], seen: torch.Tensor, chance: float) -> Iterator[str]:
    """Yield the element that is kept too often or too seldom in independent calls; each counts for as many as there
    are."""
    total = torch.stack(tuple(masks)).sum(0)
    for index in seen.nonzero():
        count = int(total[tuple(index)])
        if int(seen.sum()) * surprise(count, len(masks), chance) < ALARM:
            expected = f"where {chance * len(masks):.6g} are expected"
            yield f"element {index.tolist()} is kept in {count} of {len(masks)} calls, {expected}"
            return


def lags(shape: Sequence[int]) -> list[int]:
    """Return the distances at which elements are compared, row-major: one step in each dim, and powers of two, where
    the random numbers of a kernel's block may begin again."""
    total = math.prod(shape)
    steps = {math.prod(shape[dim + 1 :]) for dim in range(len(shape))}
    return sorted(lag for lag in steps | {1 << k for k in range(total.bit_length())} if 0 < lag < total)


def suspects(kept: torch.Tensor, seen: torch.Tensor, other: torch.Tensor | None = None) -> list[int]:
    """Return the three distances at which elements are most alike, or most unlike, of all that leave a pair; by the
    theorem of Wiener and Khinchin. The tested quantity chooses them, so that each counts for as many tests as there
    are.

    ``other``: the mask with elements that far beyond the elements of ``kept``; None: the same."""
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
    """Return the first and the second elements of disjoint pairs that are ``lag`` apart."""
    count = len(mask) // (2 * lag)
    disjoint = mask[: count * 2 * lag].view(count, 2, lag)
    return disjoint[:, 0], disjoint[:, 1]


def surprise(successes: int, trials: int, probability: float) -> float:
    """Bound the probability that the share of successes is as far from ``probability`` as this, to either side."""
    share, divergence = successes / trials, 0.0
    for found, wanted in ((share, probability), (1 - share, 1 - probability)):
        if found:
            divergence += found * math.log(found / wanted)
    return min(1.0, 2 * math.exp(-trials * divergence))


def unlikely(successes: torch.Tensor, probability: float, tries: int = 1) -> str:
    """Return a message where so many successes are too improbable, else nothing. ``tries``: it is the most suspect of
    so many."""
    count, trials = int(successes.sum()), successes.numel()
    if not trials or tries * surprise(count, trials, probability) >= ALARM:
        return ""
    return f"{count} of {trials}, where {probability * trials:.6g} are expected"
