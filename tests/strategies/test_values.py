"""Recipes make what their names say, the same everywhere; rounding is to nearest even."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from strategies import dtypes, values
from strategies.specs import TensorSpec
from strategies.tensors import materialize

FLOATS = dtypes.FLOATING + dtypes.FP8
NARROW = [name for name in FLOATS if dtypes.format_of(name).bits <= 16]
RECIPES = [(name, recipe) for name in dtypes.NAMES for recipe in values.recipes_of(name)]
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    size = tensor.element_size()
    return tensor.contiguous().view(SIGNED[size]).numpy().view(f"u{size}")


def decode(bits: np.ndarray, name: str) -> np.ndarray:
    form = dtypes.format_of(name)
    return (
        torch.from_numpy(bits.astype(form.carrier).view(f"i{form.bits // 8}"))
        .view(dtypes.to_torch(name))
        .double()
        .numpy()
    )


def elements(name: str, recipe: str, shape: tuple[int, ...] = (64, 129), seed: int = 3) -> np.ndarray:
    """As float64, or as int64 for integers and bool."""
    tensor = materialize(TensorSpec(shape, name, recipe, seed))
    return (tensor.double() if dtypes.is_floating(name) else tensor.long()).numpy()


@pytest.mark.parametrize("name", NARROW)
def test_rounding_is_to_nearest_even_at_every_value_and_every_tie(name):
    # The points are all finite values, the midpoints between neighbours, and the float64 on either side of those.
    form = dtypes.format_of(name)
    finite = np.arange(form.inf_bits)
    exact = decode(finite, name)
    above = np.append(exact[1:], 2 * exact[-1] - exact[-2])  # as if one more finite value followed the largest
    middle = (exact + above) / 2  # exact: a narrow format's neighbours have a midpoint in float64
    even = np.where(finite % 2 == 0, finite, finite + 1)
    for points, expected in (
        (exact, finite),
        (middle, even),
        (np.nextafter(middle, -np.inf), finite),
        (np.nextafter(middle, np.inf), finite + 1),
    ):
        np.testing.assert_array_equal(values.encode(points, form), expected)
        np.testing.assert_array_equal(values.encode(-points, form), expected | form.sign_bit)


@pytest.mark.parametrize("name", FLOATS)
def test_rounding_agrees_with_torch(name):
    # Doubles that float32 holds, because torch rounds to float32 first and so rounds others twice.
    form = dtypes.format_of(name)
    words = np.random.Philox(key=0).random_raw(1 << 18).astype(np.uint32)
    points = np.concatenate([words.view(np.float32), np.float32([0.0, -0.0, 1.0, np.inf, -np.inf])])
    points = points[~np.isnan(points)].astype(np.float64)
    if not form.infinity:  # beyond the largest value versions of torch differ
        points = points[np.abs(points) <= form.largest]
    np.testing.assert_array_equal(
        values.encode(points, form), bits_of(torch.from_numpy(points).to(dtypes.to_torch(name)))
    )


def test_rounding_to_float16_is_not_done_twice():
    points = np.ldexp(1 + np.random.Philox(key=1).random_raw(1 << 18) * 2.0**-64, -14)
    points = np.concatenate([points, np.float64([1 + 2**-11 + 2**-40, 1 + 2**-11 - 2**-40])])
    np.testing.assert_array_equal(
        values.encode(points, dtypes.format_of("float16")), points.astype(np.float16).view(np.uint16)
    )


@pytest.mark.parametrize("name", FLOATS)
def test_nan_and_overflow(name):
    form = dtypes.format_of(name)
    bits = values.encode(np.float64([np.nan, np.inf, -np.inf]), form)
    assert np.isnan(decode(bits[:1], name)).all()
    expected = [np.inf, -np.inf] if form.infinity else [np.nan, np.nan]
    np.testing.assert_array_equal(decode(bits[1:], name), expected)


@pytest.mark.parametrize(("name", "recipe"), RECIPES)
def test_bits_depend_on_nothing_but_the_spec(name, recipe, monkeypatch):
    spec = TensorSpec((7, 31), name, recipe, seed=5)
    first = bits_of(materialize(spec))
    np.testing.assert_array_equal(first, bits_of(materialize(spec)))
    monkeypatch.setattr(values, "CHUNK", 10)
    np.testing.assert_array_equal(first, bits_of(materialize(spec)), "made in chunks of another size")


@pytest.mark.parametrize(
    ("name", "recipe"), [pair for pair in RECIPES if pair[1] not in ("zeros", "ascending", "descending")]
)
def test_bits_differ_between_seeds_and_operands(name, recipe):
    def several(**change: int) -> set[bytes]:
        operands, seeds = change.get("operands", 1), change.get("seeds", 1)
        made = [materialize(TensorSpec((7, 31), name, recipe, s), o) for s in range(seeds) for o in range(operands)]
        return {bits_of(tensor).tobytes() for tensor in made}

    # A constant has few values to choose from in bool and among small integers, and so have seven rows of 8-bit floats.
    distinct = {"constant": 2, "level": 6, "steep": 4, "causal": 2, "window": 4, "slopes": 2}.get(recipe, 8)
    assert len(several(seeds=8)) >= distinct
    assert len(several(operands=8)) >= distinct


@pytest.mark.parametrize(("recipe", "deviation"), [("normal", 1), ("normal_small", 2.0**-7), ("normal_large", 64)])
@pytest.mark.parametrize("name", FLOATS)
def test_normal(name, recipe, deviation):
    drawn = elements(name, recipe, (1 << 16,)) / deviation
    assert abs(drawn.mean()) < 0.02
    assert abs(drawn.std() - 1) < 0.02
    assert 3.5 < np.abs(drawn).max() < 5.1
    # The bell's shape: shares within one and two standard deviations, at points that are not values of float8.
    for limit in (1.03, 2.05):
        tolerance = 0.05 if name in dtypes.FP8 else 0.01
        assert abs((np.abs(drawn) < limit).mean() - math.erf(limit / math.sqrt(2))) < tolerance


@pytest.mark.parametrize("name", FLOATS)
def test_float_recipes(name):
    form = dtypes.format_of(name)
    assert set(np.unique(elements(name, "powers"))) == {2.0**exponent for exponent in range(-8, 8)}
    uniform = elements(name, "uniform")
    assert uniform.min() >= -1
    assert uniform.max() <= 1
    assert abs(uniform.std() - 1 / math.sqrt(3)) < 0.02
    positive = elements(name, "positive")
    assert 2.0**-6 <= positive.min() < 0.1
    assert 3.9 < positive.max() <= 4.5
    near = elements(name, "near_overflow")
    assert np.isfinite(near).all()
    assert np.abs(near).min() >= form.largest / 2
    assert np.abs(near).max() > 0.98 * form.largest
    assert 0.4 < (near > 0).mean() < 0.6
    smallest_normal = 2.0 ** (1 - form.bias)
    subnormal = elements(name, "subnormal")
    assert np.abs(subnormal).max() < 2 * smallest_normal
    assert 0.4 < (np.abs(subnormal) < smallest_normal).mean() < 0.6
    assert 0.4 < np.signbit(subnormal).mean() < 0.6
    every = elements(name, "every_exponent", (1 << 15,))
    assert np.isfinite(every).all()
    exponents = set(np.frexp(every[every != 0])[1])
    assert len(exponents) >= 2**form.exponent - 3


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_large_mean_defeats_the_one_pass_variance(name):
    drawn = materialize(TensorSpec((64, 1024), name, "large_mean"))
    compute = drawn.to(torch.float64 if name == "float64" else torch.float32)
    one_pass = (compute * compute).mean(-1) - compute.mean(-1) ** 2
    true = drawn.double().var(-1, correction=0)
    if name == "float64":
        true = (drawn - drawn.mean(-1, keepdim=True)).var(-1, correction=0)
    assert (true - 1).abs().max() < 0.3
    error = ((one_pass.double() - true) / true).abs().max()
    # Half types hold a mean of 2^10 (bfloat16: 2^7) at most beside a deviation of 1.
    assert error > {"float32": 1e-1, "float64": 1e-1, "float16": 1e-3, "bfloat16": 1e-5}[name]


@pytest.mark.parametrize("name", dtypes.INTEGRAL)
def test_integer_recipes(name):
    info = torch.iinfo(dtypes.to_torch(name))
    low = 0 if name == "uint8" else -8
    small = elements(name, "integers")
    assert set(small.flat) == set(range(low, low + 17))
    assert set(elements(name, "positive").flat) == set(range(1, 33))
    normal = elements(name, "normal")
    assert max(low * 3, -24) <= normal.min() <= 0 < normal.max() <= 24
    full = elements(name, "uniform")
    span = float(info.max) - info.min
    assert full.min() < info.min + 0.01 * span
    assert full.max() > info.max - 0.01 * span
    near = set(elements(name, "near_overflow").flat)
    assert near == {info.min + k for k in range(8)} | {info.max - k for k in range(8)}


@pytest.mark.parametrize("name", FLOATS)
def test_integers_in_float_are_whole(name):
    assert set(elements(name, "integers").flat) == set(range(-8, 9))


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_constant_one_hot_and_zeros(name):
    assert not elements(name, "zeros").any()
    constants = [set(elements(name, "constant", seed=seed).flat) for seed in range(8)]
    assert all(len(found) == 1 for found in constants)
    assert len(set.union(*constants)) > 1
    hot = elements(name, "one_hot")
    assert set(hot.flat) == {0, 1}
    assert (hot.sum(-1) == 1).all()
    assert len(set(hot.argmax(-1))) > 10
    assert elements(name, "one_hot", ()) == 1


@pytest.mark.parametrize("shape", [(200,), (31, 17), (5, 6, 7)])
@pytest.mark.parametrize("name", FLOATS + dtypes.INTEGRAL)
def test_ramps_are_monotonic_along_every_dim(name, shape):
    for recipe, sign in (("ascending", 1), ("descending", -1)):
        ramp = elements(name, recipe, shape) * sign
        for dim in range(len(shape)):
            assert (np.diff(ramp, axis=dim) >= 0).all()
            assert (np.take(ramp, -1, dim) > np.take(ramp, 0, dim)).all()


def test_bool_is_half_true():
    assert 0.45 < elements("bool", "normal").mean() < 0.55


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_specials_are_those_values(name):
    dtype = dtypes.to_torch(name)
    info = None if name == "bool" else (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype)
    found = {
        value: decode(np.array([values.special_bits(value, name)]), name)[0].item()
        if dtype.is_floating_point
        else torch.from_numpy(
            np.array([values.special_bits(value, name)], dtypes.format_of(name).carrier).view(f"i{dtype.itemsize}")
        )
        .view(dtype)
        .item()
        for value in values.specials_of(name)
    }
    assert found["max"] == (info.max if info else True)
    assert found["min"] == (info.min if info else False)
    if dtype.is_floating_point:
        form = dtypes.format_of(name)
        assert math.isnan(found["nan"])
        assert found["-0"] == 0
        assert math.copysign(1, found["-0"]) == -1
        assert found["tiny"] == -found["-tiny"] == 2.0 ** (1 - form.bias - form.mantissa)
        assert (found.get("inf"), found.get("-inf")) == ((math.inf, -math.inf) if form.infinity else (None, None))
    else:
        assert set(found) == {"max", "min"}


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_each_recipe_is_drawn(examples, name):
    assert set(examples(values.recipes(name), 200)) == set(values.recipes_of(name)) - set(values.NAMED)


@pytest.mark.parametrize("name", [*dtypes.FLOATING, "bool"])
def test_masks_keep_some_and_are_drawn_where_they_are_named(examples, name):
    kept = {recipe: elements(name, recipe) == (1 if name == "bool" else 0) for recipe in values.MASKS}
    left_out = 0 if name == "bool" else -math.inf
    assert all((elements(name, recipe)[~kept[recipe]] == left_out).all() for recipe in values.MASKS)
    assert 0.73 < kept["masked"].mean() < 0.77
    lengths = kept["prefix"].sum(1)
    assert (kept["prefix"] == (np.arange(129) < lengths[:, None])).all()
    assert len(set(lengths)) > 40
    # From none to all.
    short = elements(name, "prefix", (64, 3)) == (1 if name == "bool" else 0)
    assert set(short.sum(1)) == {0, 1, 2, 3}
    assert set(examples(values.recipes(name, values.MASKS), 50)) == set(values.MASKS)


@pytest.mark.parametrize("name", ["float32", "bool"])
def test_masks_of_structure_are_as_models_make_them(name):
    one = 1 if name == "bool" else 0
    rows, columns = np.mgrid[:9, :12]
    causal = [elements(name, "causal", (2, 9, 12), seed) == one for seed in range(8)]
    shifts = {shift for found in causal for shift in (0, 3) if (found == (columns <= rows + shift)).all()}
    assert shifts == {0, 3}
    for seed in range(30):
        (first, second) = elements(name, "window", (2, 9, 12), seed) == one
        assert (first == second).all()
        assert np.diagonal(first).all()
        assert not first[columns > rows].any()
    assert any((elements(name, "window", (9, 12), seed) == one)[8, 0] for seed in range(30))


def test_slopes_grow_with_the_distance():
    below, distance = np.tril(np.ones((9, 12), bool)), np.subtract.outer(np.arange(9), np.arange(12))
    behind = set()
    for seed in range(20):
        found = elements("float32", "slopes", (3, 9, 12), seed)
        for head, number in zip(found, range(3), strict=True):
            assert (head[below] == found[0][1, 0] * 2.0**-number * distance[below]).all()
            behind |= {*head[~below]}
    assert behind == {0, -math.inf}


@pytest.mark.parametrize("name", FLOATS)
def test_tables_say_each_number_twice(examples, name):
    halves, neighbours = (elements(name, recipe, (40, 64)) for recipe in values.TABLES)
    np.testing.assert_array_equal(halves[:, :32], halves[:, 32:])
    np.testing.assert_array_equal(neighbours[:, ::2], neighbours[:, 1::2])
    for once in (halves[:, :32], neighbours[:, ::2]):
        assert abs(once.mean()) < 0.1
        assert abs(once.std() - 3**-0.5) < 0.1
        assert len(set(once.ravel())) > 0.9 * min(once.size, 2 ** (dtypes.format_of(name).mantissa + 1))
    assert set(examples(values.recipes(name, values.TABLES), 50)) == set(values.TABLES)


@pytest.mark.parametrize("name", FLOATS)
def test_a_nan_of_the_other_sign_is_planted_where_it_is_named(name):
    form = dtypes.format_of(name)
    bits = values.special_bits(values.SIGNED_NAN, name)
    assert math.isnan(decode(np.array([bits]), name)[0].item())
    assert bits & form.sign_bit
    assert bits != form.sign_bit | form.nan_bits or form.nan_bits & 1
    assert values.SIGNED_NAN not in values.specials_of(name)


@pytest.mark.parametrize("name", FLOATS)
def test_a_nan_of_all_bits_is_planted_where_it_is_named(name):
    bits, form = values.special_bits(values.FULL_NAN, name), dtypes.format_of(name)
    assert math.isnan(decode(np.array([bits]), name)[0].item())
    assert bits == form.sign_bit - 1
    assert values.FULL_NAN not in values.specials_of(name)


def test_integers_have_no_nan():
    with pytest.raises(ValueError, match="int8 has no special value '-nan'; it has: max, min"):
        values.special_bits(values.SIGNED_NAN, "int8")


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("float32", [16777216, -33554436, 3]),
        ("float64", [2**53 - 1, -1]),
        ("bfloat16", [256, 258]),
        ("float16", [2048, 2050]),
        ("float8_e4m3fn", [16, 18, 0]),
    ],
)
def test_listed_elements_of_floats(dtype, numbers):
    recipe = values.LISTED + ",".join(map(str, numbers))
    assert materialize(TensorSpec((len(numbers),), dtype, recipe)).double().tolist() == numbers


@pytest.mark.parametrize("name", dtypes.INTEGRAL)
def test_magnitudes_are_of_every_number_of_bits(name):
    found, form = elements(name, "magnitudes", (1 << 14,)), dtypes.format_of(name)
    lengths = [abs(int(number)).bit_length() for number in found]
    most = form.bits - (form.kind == "int")
    assert set(lengths) == set(range(1, most + 1))
    counts = np.bincount(lengths)[1:] * most / len(lengths)
    assert 0.7 < counts.min() <= counts.max() < 1.3
    assert ((found < 0).mean() > 0.45) == (form.kind == "int")


def test_bools_of_any_byte_are_true_or_false():
    tensor = materialize(TensorSpec((1 << 14,), "bool", "bytes"))
    stored = tensor.view(torch.uint8)
    assert set(stored.tolist()) == set(range(256))
    assert 0.45 < (stored != 0).double().mean() < 0.55
    assert torch.equal(torch.logical_not(tensor), stored == 0)


def test_listed_elements():
    assert materialize(TensorSpec((2, 4), "int32", "listed:3,0,-5")).tolist() == [[3, 0, -5, 3], [0, -5, 3, 0]]
    assert materialize(TensorSpec((0,), "uint8", "listed:255")).tolist() == []


def test_recipes_that_make_no_sense_for_a_dtype_are_not_drawn(examples):
    assert set(examples(values.recipes("int8", ["subnormal", "uniform"]), 50)) == {"uniform"}
    assert set(examples(values.recipes("bool", ["subnormal"]), 50)) == set(values.recipes_of("bool")) - set(
        values.NAMED
    )
    with pytest.raises(ValueError, match="unknown values 'nromal'; known: normal"):
        values.recipes("float32", ["nromal"])


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "int64"])
@pytest.mark.parametrize("recipe", ["normal", "uniform", "ascending"])
def test_a_million_elements_are_few_calls(name, recipe, calls):
    # Elements are made in chunks.
    assert calls(lambda: materialize(TensorSpec((1024, 1024), name, recipe))) < 10_000


@pytest.mark.parametrize(("name", "bits"), [("float32", 24), ("float16", 11), ("bfloat16", 8)])
def test_products_of_ties_and_sums_of_normal_numbers_lie_just_between_two_numbers(name, bits):
    # float64 holds them exactly.
    product = elements(name, "ties") * elements(name, "ties", seed=1)
    sums = elements(name, "normal") + elements(name, "normal", seed=1)
    for exact in (product, sums):
        steps = np.ldexp(np.frexp(exact)[0], bits)
        assert (np.abs(steps - np.rint(steps)) == 0.5).mean() > 0.02
