"""Tests of calls at the numbers that the judged code has."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from conformance import cases, code_draws, code_numbers, drawing, profiles, runner, sequence_draws
from conformance.cases import Case
from conformance.selftest import defect_registry, search, sequence_runs
from conformance.spec import registry
from strategies import tensors
from strategies.specs import Special, TensorSpec
from strategies.values import special_bits

BANK = defect_registry.bank()
CI = profiles.PROFILES["ci"]
NUMBERS = (100, 777, 5000, 66000, 0.25, 88.5)

TABLE = {"block": 1 << 14}
SEEN = {}
TILES = {5376: 4096, (24, 896, 4864): 256}


def helper(x):
    return x if x.numel() > 3 * 1000 else -x


def counted(x, eps=0.375):
    def inner():
        return helper(x) if TABLE["block"] else SEEN

    return inner() + 0.5


@functools.lru_cache
def cached(x):
    return x + 4321


class Kernel:
    """As a compiled one: the function is one of its attributes."""

    def __init__(self, fn):
        self.fn, self.blocks = fn, [144, 288]

    def __call__(self, x):
        return self.fn(x)


def test_numbers_are_those_of_the_code_and_of_what_it_calls_nearest_first():
    found = code_numbers.of(counted)
    assert {0.5, 0.375, 3000, 16384} <= {*found}
    assert found.index(0.5) < found.index(3000)


def test_numbers_of_wrapped_functions_partials_kernels_and_modules_are_found():
    module = ModuleType("somebodys")
    exec("BLOCK = 1 << 13\ndef f(x):\n    return x if x.numel() > BLOCK else x[:999]", vars(module))
    own = ModuleType("own")
    own.somebodys = module
    exec("def f(x):\n    return somebodys.f(x) + 77", vars(own))
    assert {77, 999, 8192} <= {*code_numbers.of(own.f)}
    assert 4321 in code_numbers.of(cached)
    assert {3000, 144, 288} <= {*code_numbers.of(Kernel(functools.partial(helper)))}


def test_numbers_of_native_code_are_found():
    source = "template <int B> __global__ void k(float* x) { if (n > 4099u) x[0] = 0.375f * 1e-3; int m = 1 << 13; }"
    assert {4099, 0.375, 1e-3, 8192} <= {*code_numbers.of(lambda: source)}
    assert not code_numbers.of(lambda: "In 1999 there were 4099 of them.")


def test_numbers_of_a_table_are_found_whatever_its_keys_are():
    def tiled(x):
        return TILES.get(x.shape[-1])

    assert {5376, 4096, 24, 896, 4864, 256} <= {*code_numbers.of(tiled)}
    assert code_numbers.rows(tiled) == [(24, 896, 4864)]
    TILES[999983] = 999979
    try:
        # What a call has put there later is no number of the code.
        assert not {999983, 999979} & {*code_numbers.of(tiled)}
    finally:
        del TILES[999983]


def test_rows_are_of_two_to_four_whole_numbers():
    def function(x):
        return x.shape in ((3, 5), (7, 1), (2.5, 4), (True, 9), (9, 8, 7, 6, 5), (16, 32, 64, 128), (3, 5))

    assert code_numbers.rows(function) == [(3, 5), (16, 32, 64, 128)]


def test_numbers_of_other_packages_caches_and_addresses_are_not_found():
    assert code_numbers.of(torch.exp) == []
    code_numbers.note_tables()
    SEEN[1234567] = 7654321
    try:
        assert not {1234567, 7654321} & {*code_numbers.of(counted)}
    finally:
        SEEN.clear()
    keeps = SimpleNamespace(address=id(keeps_what := object()) + 2**41, what=keeps_what)
    assert all(abs(number) <= code_numbers.LARGEST for number in code_numbers.of(lambda: keeps))


def test_looking_for_numbers_runs_nothing():
    class Trap:
        def __getattr__(self, name):
            raise AssertionError(name)

        @property
        def value(self):
            raise AssertionError

    trap = Trap()
    trap.number = 4711
    assert 4711 in code_numbers.of(lambda: trap)


@pytest.mark.parametrize(("value", "dtype", "expected"), [("88.5", "float32", 88.5), ("-3", "int16", -3)])
def test_a_number_can_be_planted(value, dtype, expected):
    spec = TensorSpec((4,), dtype, "zeros", specials=(Special(1, value, 2),))
    assert tensors.materialize(spec).tolist() == [0, expected, expected, 0]


@pytest.mark.parametrize(("value", "dtype"), [("300", "int8"), ("0.5", "int32"), ("1", "bool"), ("1_0", "float32")])
def test_a_number_that_a_dtype_does_not_have_is_refused(value, dtype):
    with pytest.raises(ValueError, match=r"no number|unknown special value"):
        special_bits(value, dtype)


def drawn(op: str, dtype: str, numbers, elements: int = 1 << 20, rounds: int = 3) -> list[Case]:
    draws = code_draws.calls(registry()[op], numbers, elements)
    assert draws is not None
    return list(itertools.chain.from_iterable(drawing.drawn(draws((dtype,)), f"code/{n}", 10) for n in range(rounds)))


@pytest.mark.parametrize("op", ["mm", "softmax", "add", "cross_entropy", "scaled_dot_product_attention"])
def test_sizes_are_at_the_numbers_and_torch_takes_the_calls(op):
    found = drawn(op, "float32", NUMBERS, rounds=4)
    near = {k * number + more for number in NUMBERS[:4] for k in (1, 2, 3) for more in (-1, 0, 1, 7)}
    at = [case for case in found if any(near & {*spec.shape} for spec in cases.operands(case))]
    assert len(at) >= 6
    for case in at[:6]:
        assert runner.prepare(case, search.CPU).refusal is None


def test_elements_arguments_and_distances_are_at_the_numbers():
    found = drawn("rms_norm", "float32", NUMBERS)
    specs = [spec for case in found for spec in cases.operands(case)]
    assert any(special.value.lstrip("-")[0].isdecimal() for spec in specs for special in spec.specials)
    assert any(max((*spec.layout.padding, spec.layout.offset)) > 90 for spec in specs)
    assert any(0.25 in (*case.args, *case.kwargs.values()) for case in found)


@pytest.mark.parametrize(("op", "dtype", "elements"), [("mm", "float32", 1 << 14), ("add", "float64", 1 << 20)])
def test_changed_calls_are_no_larger_than_large_ones_may_be(op, dtype, elements):
    found = [case for case in drawn(op, dtype, (66000,), elements) if max(largest(case), default=0) >= 66000]
    assert found == []
    found = [case for case in drawn(op, dtype, (1500,), elements) if 1499 in largest(case) or 1501 in largest(case)]
    assert all(sum(math.prod(spec.shape) for spec in cases.operands(case)) <= 1 << 14 for case in found)


def largest(case: Case) -> list[int]:
    return [max(spec.shape, default=0) for spec in cases.operands(case)]


def test_code_without_numbers_has_no_calls_of_its_own():
    assert code_draws.calls(registry()["mm"], (0, 1.0, -1), 1 << 20) is None
    kinds = {part.kind for part in profiles.rounds("mm", "float32", False, ("float32",), CI, 0)}
    assert "code" not in kinds


def test_what_else_is_drawn_is_as_without_numbers():
    plain = list(profiles.rounds("add", "float32", False, ("float32",), CI, 0))
    more = list(profiles.rounds("add", "float32", False, ("float32",), CI, 0, numbers=NUMBERS))
    assert [part.seed for part in more[: len(plain)]] == [part.seed for part in plain]
    assert {part.kind for part in more[len(plain) :]} == {"code"}


def test_sequences_call_as_often_as_the_code_has_a_number():
    with_numbers = list(sequence_draws.drawn("exp", ("float32",), 4, 0, (70, 5, 0.5, 90)))
    assert [72 in [step.times for step in one.steps] for one in with_numbers] == [False, False, True, False]
    assert [92 in [step.times for step in one.steps] for one in with_numbers] == [False, False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "bmm_tiles_of_several_matrices",
        "rms_norm_eps_past_three_eighths",
        "mm_split_of_a_table",
    ],
)
def test_what_is_wrong_beyond_a_number_of_the_code_is_caught(name):
    defect = BANK[name]
    found = search.code_cases(defect.op, CI, 0, defect.implementation)
    wrong = (runner.judge(case, defect.implementation, search.CPU, [defect.check]).failure for case in found)
    assert any(wrong)


@pytest.mark.parametrize("op", ["exp", "amax", "addmm", "cross_entropy"])
def test_what_is_kept_for_a_shape_and_other_options_is_caught(op):
    defects = [one for one in BANK.values() if one.op == op and one.kind == "thresholds" and one.make]
    assert all(result.killed for result in sequence_runs.study(op, defects))


def test_the_judged_process_tells_its_numbers(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "import torch\n\ndef exp(input, *, out=None):\n    return torch.exp(input + 4711 - 4711)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    from conformance.worker import Child

    child = Child("own", "cpu")
    try:
        assert child.numbers("exp") == [4711]
    finally:
        child.close()
    assert "own" not in sys.modules
