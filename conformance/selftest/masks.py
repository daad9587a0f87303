"""Planted defects of dropout masks that are right one by one, but depend on those of earlier calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import correct
from conformance.selftest.defect_registry import plant

CALLS = 64
"""So many calls after a seed are told apart."""


def _numbers(shape: torch.Size, moved: Callable[[torch.Tensor, int, int], torch.Tensor]) -> torch.Tensor:
    """Uniform numbers for a call: ``moved`` of a stream that belongs to the seed, the number of the call since it was
    set, and how many are wanted."""
    seed, drawn = torch.initial_seed(), torch.rand(())
    again = torch.Generator().manual_seed(seed)
    number = next((number for number in range(CALLS) if torch.rand((), generator=again) == drawn), 0)
    wanted = shape.numel()
    stream = torch.rand(wanted + 64 * CALLS, generator=torch.Generator().manual_seed(seed + 1))
    return moved(stream, number, wanted).view(shape)


def _dropping(moved: Callable[[torch.Tensor, int, int], torch.Tensor]) -> Callable[..., Any]:
    def wrong(right: Callable[..., Any], input: Any, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Any:
        before, state = input.clone() if isinstance(input, torch.Tensor) else input, torch.get_rng_state()
        result = right(input, p, training, inplace=inplace)
        if not training or p in (0, 1):
            return result
        # Each call moves the generator on by one number.
        torch.set_rng_state(state)
        return result.copy_(correct.dropped(before, _numbers(input.shape, moved) >= p, p))

    return wrong


for _step in (1, 4, 64):
    plant(
        "dropout",
        f"moves_on_by_{_step}",
        "masks",
        "distribution",
        _dropping(lambda stream, number, wanted, _step=_step: stream[_step * number :][:wanted]),
        f"the offset of the generator moves on by {_step}, whatever a call has drawn",
    )
plant(
    "dropout",
    "moves_back",
    "masks",
    "distribution",
    _dropping(lambda stream, number, wanted: stream[64 * CALLS - 3 * number - 3 :][:wanted]),
    "the offset of the generator moves back by 3",
)
plant(
    "dropout",
    "turned_around",
    "masks",
    "distribution",
    _dropping(lambda stream, number, wanted: stream[:wanted].flip(0) if number % 2 else stream[:wanted]),
    "every second mask is the one before, turned around",
)
plant(
    "dropout",
    "opposite",
    "masks",
    "distribution",
    _dropping(lambda stream, number, wanted: 1 - stream[3:][:wanted] if number % 2 else stream[:wanted]),
    "every second call draws from 1 less the numbers of the one before, moved by 3",
)

_own = {"seed": -1, "calls": 0}


def _by_own_count(
    right: Callable[..., Any], input: Any, p: Any = 0.5, training: bool = True, *more: Any, **how: Any
) -> Any:
    before, seed = torch.get_rng_state(), torch.initial_seed()
    result = right(input, p, training, *more, **how)
    if more or how or not training or p in (0, 1):
        return result
    if seed != _own["seed"] or torch.equal(before, torch.Generator().manual_seed(seed).get_state()):
        _own.update(seed=seed, calls=0)
    _own["calls"] += 1
    numbers = torch.rand(input.shape, generator=torch.Generator().manual_seed(seed * 1_000_003 + _own["calls"]))
    return result.copy_(correct.dropped(input, numbers >= p, p))


plant(
    "dropout",
    "state_set_again_forgotten",
    "masks",
    "distribution",
    _by_own_count,
    "the calls since the seed are counted, whatever state the generator was set to since",
)


def _of_few_seeds(
    right: Callable[..., Any], input: Any, p: Any = 0.5, training: bool = True, *more: Any, **how: Any
) -> Any:
    result = right(input, p, training, *more, **how)
    if more or how or not training or p in (0, 1):
        return result
    seed = int(torch.randint(1 << 16, ()))
    numbers = torch.rand(input.shape, generator=torch.Generator().manual_seed(seed))
    return result.copy_(correct.dropped(input, numbers >= p, p))


plant("dropout", "seeds_of_16_bits", "masks", "distribution", _of_few_seeds, "a mask is drawn from a seed of 16 bits")
