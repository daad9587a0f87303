"""The bits of specs, for all time: a digest that changes means that saved cases no longer have the same inputs.

``python tests/strategies/test_golden_digests.py`` writes the file anew; only a deliberate change of the bits may.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch

from strategies import dtypes, values
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import digest, materialize

FILE = Path(__file__).with_name("golden_digests.json")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]

LAYOUTS = (
    Layout(),
    Layout(offset=3),
    Layout(order=(1, 0)),
    Layout(steps=(2, 3)),
    Layout(padding=(0, 5), offset=2),
    Layout(expanded=(0,)),
    Layout(order=(1, 0), steps=(1, 2), padding=(1, 0), offset=7),
)


LATER = ("level", "steep", "partly_plain", "late", "sure", "causal", "window")
"""Recipes that came later than others of their group."""


def specs() -> list[tuple[TensorSpec, int]]:
    """Every recipe of every dtype, with layouts, seeds, operand numbers and specials in turn; sizes at the ends."""
    found = []
    # In the order in which they came to be.
    rows = tuple(recipe for recipe in values.ROWS if recipe not in LATER)
    single = [
        (recipe,)
        for recipe in ("magnitudes", "bytes", "level", "shifted", "steep", "flags", *LATER[2:], *values.SLOPES)
    ]
    later = (
        tuple(recipe for recipe in values.MASKS if recipe not in LATER),
        values.TABLES,
        ("powers",),
        ("ties",),
        rows,
        *single,
    )
    ordered = ([r for r in values.RECIPES if not any(r in recipes for recipes in later)], *later)
    for name, recipe in ((name, recipe) for recipes in ordered for name in dtypes.NAMES for recipe in recipes):
        if recipe in values.recipes_of(name):
            turn = len(found)
            specials = values.specials_of(name)
            planted = (Special(turn, specials[turn % len(specials)]), Special(-1, specials[0])) if turn % 3 == 0 else ()
            spec = TensorSpec((5, 67), name, recipe, turn**5, LAYOUTS[turn % len(LAYOUTS)], planted)
            found.append((spec, turn % 4))
    found += [
        (TensorSpec((), "bfloat16", specials=(Special(0, "-0"),)), 0),
        (TensorSpec((3, 0), "float16"), 0),
        (TensorSpec((2 * values.CHUNK + 1,), "float32"), 0),
        (TensorSpec((3, 5, 7, 11), "float16", "ascending", 2**64 - 1, Layout(order=(0, 2, 3, 1))), 2**32),
        (TensorSpec((7,), "int32", "listed:3,0,-5", layout=Layout(steps=(2,))), 1),
    ]
    return found


def golden() -> list[dict]:
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("device", DEVICES)
def test_digests_are_the_golden_ones(device):
    wrong = []
    for entry in golden():
        spec = msgspec.convert(entry["spec"], TensorSpec)
        found = digest(materialize(spec, entry["operand"], device))
        if found != entry["digest"]:
            wrong.append(f"{entry['spec']}: {found} instead of {entry['digest']}")
    assert not wrong, "\n".join(wrong)


def test_the_golden_specs_are_every_recipe_of_every_dtype():
    entries = [(msgspec.convert(entry["spec"], TensorSpec), entry["operand"]) for entry in golden()]
    assert entries == specs()
    assert len({entry["digest"] for entry in golden()}) > 0.9 * len(entries)


def _write() -> None:
    entries = (
        {"spec": msgspec.to_builtins(spec), "operand": operand, "digest": digest(materialize(spec, operand))}
        for spec, operand in specs()
    )
    FILE.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    _write()
