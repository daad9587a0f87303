"""Hard numbers reach the cases: rows whose sums and maxima are hard to have, numbers that a dtype does not hold."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from op_tools import drawn, missing

from conformance import case_files, runner
from conformance.cases import Case
from conformance.implementations import Implementation
from conformance.ops import _comparison as comparison
from conformance.ops import _norms as norms
from conformance.spec import registry
from strategies import dtypes, values
from strategies.specs import Special, TensorSpec
from strategies.tensors import materialize


@pytest.mark.parametrize("op", ["softmax", "layer_norm", "rms_norm"])
def test_every_recipe_for_rows_is_drawn(op):
    wanted = {*values.ROWS, "normal"}
    assert missing(registry()[op].cases(("float32",)), wanted, lambda case: {case.args[0].values}) == set()


def test_eps_that_no_half_type_holds():
    for dtype in (torch.float16, torch.bfloat16):
        lost = [eps for eps in norms.EPSILONS if torch.tensor(eps, dtype=torch.float64).to(dtype).item() != eps]
        assert len(lost) >= 3


@pytest.mark.parametrize("dtype", [name for name in dtypes.ALL if name != "bool"])
def test_a_number_beside_a_tensor_is_equal_to_an_element_only_once_it_is_rounded(dtype):
    rounded = 0
    for spec, number in drawn(comparison.beside((dtype,)), 60):
        x = materialize(spec)
        exact = (x.double().numpy() == number) if x.is_floating_point() else np.array([n == number for n in x.tolist()])
        rounded += bool((torch.eq(x, number).numpy() != exact).any())
        assert torch.eq(x, number).any() or number not in x.tolist()
    assert rounded >= 10 or dtype in ("float64", "int8", "int16", "uint8")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_signalling_nan_is_planted_and_is_nan(dtype):
    x = materialize(TensorSpec((3,), dtype, specials=(Special(1, "snan"),)))
    assert x.isnan().tolist() == [False, True, False]
    bits = int(x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])[1])
    assert bits == dtypes.format_of(dtype).inf_bits + 1
    case = Case(op="relu", args=(TensorSpec((3,), dtype, specials=(Special(0, "snan"),)),))
    case_files.validate(case)
    assert runner.judge(case, "torch").status == "passed"


def test_a_format_without_infinities_has_no_signalling_nan():
    with pytest.raises(ValueError, match="has no special value 'snan'"):
        values.special_bits("snan", "float8_e4m3fn")


def test_rows_are_what_they_say():
    def rows(recipe: str, dtype: str = "float32", columns: int = 4096) -> torch.Tensor:
        return materialize(TensorSpec((8, columns), dtype, recipe)).double()

    for size in (16, 32, 64, 128, 256, 512, 1024):
        tiles = rows("rising").unflatten(1, (-1, size)).amax(2).cummax(1).values
        assert (tiles[:, 1] > tiles[:, 0]).all()
        assert (tiles[:, -1] - tiles[:, 0] < 14).all()
        assert len(tiles[0].unique()) > 2
    large = rows("first_large")
    assert (large[:, 0] > 4000).all()
    assert large[:, 1:].abs().max() < 6
    cancelling = rows("cancelling")
    assert (cancelling[:, ::2] > 0).all()
    assert (cancelling[:, 1::2] < 0).all()
    assert (cancelling.sum(1).abs() < cancelling.abs().sum(1) / 100).all()
    assert 2.0**-12 < rows("normal_tiny", "float16").std() < 2.0**-10


def test_a_weighted_probability_may_vanish_in_float64():
    """5e-324 times a weight of a quarter is 0, times 16,000 it is not: which comes first is nobody's rule."""

    def weighted_first(input, target, weight=None, *, reduction="mean"):
        losses = torch.log_softmax(input, 1) * (target * weight.view(1, -1, 1, 1))
        return -losses.sum(1)

    probabilities = TensorSpec((1, 3, 5, 1), "float64", "positive", specials=(Special(0, "tiny", run=15),))
    case = Case(
        op="cross_entropy",
        args=(TensorSpec((1, 3, 5, 1), "float64", "level"), probabilities),
        kwargs={"reduction": "none", "weight": TensorSpec((3,), "float64", seed=35)},
    )
    implementation = Implementation("own", SimpleNamespace(cross_entropy=weighted_first), {})
    assert runner.judge(case, implementation, torch.device("cpu"), ["values"]).status == "passed"
