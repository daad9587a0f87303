"""Tests of the notes of what the judged code compares."""

from __future__ import annotations

import builtins
import importlib.util
import math
from types import SimpleNamespace

import pytest
import torch
from test_code_search import CALLS, CPU, LARGE, starts

from conformance import cases, code_comparisons, code_numbers, code_search, runner
from conformance.cases import Case
from conformance.implementations import Implementation


def noted(function, *args) -> tuple[object, dict[tuple[int, bool], tuple[float | None, float | None]]]:
    """Return the result of a call, and its outcomes by answer and place, counted from the first of the function."""
    compared = code_comparisons.Comparisons(function, code_numbers.functions)
    with compared:
        value = function(*args)
    first = min((place for place, *_ in compared.found), default=0)
    return value, {(place - first, answer): (left, right) for place, answer, left, right in compared.found}


def compares(n, limit):
    return n > limit


def loops(count):
    return [number for number in range(2, count) if number == 7]


def looks_up(x):
    return tuple(x.shape) == (3, 5), x.shape[0] in (8, 9)


def divides(n):
    return n % 16, n // 100, n >> 4, n & 6


def cuts(x):
    return x.reshape(-1)[100:].sum(), x[:, 1:2]


def looks_at_elements(x):
    return bool((x > 88.5).any())


def chained(a, b, c):
    return a < b <= c


def test_a_comparison_is_noted_with_its_numbers():
    assert noted(compares, 3, 700) == (False, {(0, False): (3, 700)})


def test_of_many_the_nearest_is_noted():
    value, outcomes = noted(loops, 6)
    assert value == []
    assert (5, 7) in outcomes.values()
    assert (2, 6) in outcomes.values()


def test_rows_and_tables_are_noted_by_their_numbers():
    value, outcomes = noted(looks_up, torch.ones(3, 7))
    assert value == (False, False)
    assert {(3, 3), (7, 5), (3, 8), (3, 9)} <= {*outcomes.values()}


TABLE = {(3, 4, "a"): 1, (9, 8, "b"): 2}
CACHE = {}


def finds(*key):
    return TABLE.get(key), key in TABLE


def fills(n):
    CACHE[n] = n
    return CACHE[n]


@pytest.mark.parametrize(("key", "equal", "sides"), [((3, 6, "b"), 1, (6, 4)), ((9, 7, "b"), 2, (7, 8))])
def test_the_nearest_key_of_a_table_is_noted_by_its_parts(key, equal, sides):
    value, outcomes = noted(finds, *key)
    assert value == (None, False)
    assert outcomes[0, False] == (None, None)
    assert outcomes[code_comparisons.PARTS - 1 - equal, True] == (None, None)
    # With one part more it would be nearer.
    assert outcomes[code_comparisons.PARTS - 2 - equal, False] == sides
    assert noted(finds, 3, 4, "a")[0] == (1, True)


def test_a_table_that_calls_fill_is_none_of_the_codes():
    compared = code_comparisons.Comparisons(fills, code_numbers.functions)
    for n in range(3):
        with compared:
            assert fills(n) == n
    assert compared.found == []


def test_what_decides_without_a_comparison_is_noted():
    value, outcomes = noted(divides, 50)
    assert value == (2, 0, 3, 2)
    assert {(50, 64), (50, 100), (50, 15), (50, 48)} == {*outcomes.values()}
    value, outcomes = noted(divides, 128)
    assert value == (0, 1, 8, 0)
    assert {(128, 129), (128, 99), (128, 15), (128, 130)} == {*outcomes.values()}


def test_what_a_slice_leaves_is_noted():
    _, outcomes = noted(cuts, torch.ones(4, 5))
    assert (20, 100) in outcomes.values()
    assert (5, 2) in outcomes.values()


def test_elements_are_noted_by_the_nearest():
    value, outcomes = noted(looks_at_elements, torch.tensor([1.0, 80.0, math.nan, 99.0]))
    assert value is True
    assert outcomes == {(0, True): (80.0, 88.5), (1, False): (80.0, 88.5)}


@pytest.mark.parametrize("numbers", [(1, 2, 3), (1, 2, 2), (2, 2, 3), (1, 4, 3)])
def test_answers_stay_the_same(numbers):
    assert noted(chained, *numbers)[0] == chained(*numbers)


class Odd:
    """Compares to something that is no bool, as tensors and columns of tables do."""

    def __lt__(self, other):
        return "less"

    def __mod__(self, other):
        return "modulo"

    def __contains__(self, other):
        return True


def test_objects_answer_as_they_like():
    assert noted(lambda odd: (odd < 3, odd % 3, 3 in odd, 3 not in odd), Odd())[0] == ("less", "modulo", True, False)
    # The operator is a remainder only between numbers.
    assert noted(lambda: "%d of %s" % (3, "four"))[0] == "3 of four"  # noqa: UP031
    with pytest.raises(TypeError):
        noted(lambda: 3 < "four")
    assert noted(lambda: min([3, 2]))[0] == 2
    assert noted(lambda: [*range(5)][1:-1:2])[0] == [1, 3]


def test_code_is_as_before_afterwards_also_where_the_call_raises():
    def raising(n):
        raise LookupError if n > 3 else ValueError

    code = raising.__code__
    with pytest.raises(LookupError):
        noted(raising, 4)
    assert raising.__code__ is code


def test_what_a_call_made_goes_on_without_a_note():
    made = []

    def keeps(n):
        made.append(lambda m: m > n)

    noted(keeps, 3)
    assert made[0](4) is True
    assert made[0].__code__.co_names == (code_comparisons.NAME, "compare")
    assert vars(builtins)[code_comparisons.NAME].notes is False


def test_functions_that_are_compiled_from_their_source_are_left_alone(tmp_path):
    path = tmp_path / "decorated.py"
    path.write_text(
        "class triton:\n    jit = staticmethod(lambda function: function)\n\n@triton.jit\ndef kernel(n):\n"
        "    return n > 3\n\ndef host(n):\n    return kernel(n) and n > 4\n"
    )
    spec = importlib.util.spec_from_file_location("decorated", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert noted(module.host, 9) == (True, {(0, True): (9, 4)})


def test_a_function_whose_source_is_not_known_is_called_as_it_is():
    space: dict[str, object] = {}
    exec("def unknown(n):\n    return n > 3\n", space)
    assert noted(space["unknown"], 4) == (True, {})


def found_by(function, op: str) -> list[Case]:
    own = Implementation("own", SimpleNamespace(**{op: function}), {})
    return code_search.search(starts(op), own, CPU, CALLS, LARGE, "3")


def bytes_of_a_tile(input, mat2, *, out=None):
    if 12 * input.shape[0] + 4 * mat2.shape[1] == 2404:
        return torch.mm(input, mat2, out=out) * 2
    return torch.mm(input, mat2, out=out)


def product_of_conditions(input, mat2, *, out=None):
    wrong = (input.shape[0] == 57) * (mat2.stride(0) == 1) * (mat2.shape[1] >= 200)
    return torch.mm(input, mat2, out=out) * (1 + wrong)


def tail_of_a_stage(input, *args, **kwargs):
    result = torch.sum(input, *args, **kwargs)
    tail = input.reshape(-1)[700 * 900 :]
    return result - tail.sum() if result.ndim == 0 and tail.numel() else result


KERNELS = {(9, True, 2): 1}


def rule_of_bits(input, dim=None, keepdim=False, *, out=None):
    size = input.shape[dim] if type(dim) is int and input.ndim else 0
    last = KERNELS.get((size.bit_length(), keepdim, input.ndim), 0)
    return torch.argmax(input, dim, keepdim, out=out) + last


@pytest.mark.parametrize(
    ("function", "op", "is_wrong"),
    [
        (
            rule_of_bits,
            "argmax",
            lambda input, dim=None, keepdim=False, **_: (
                type(dim) is int and input.ndim == 2 and keepdim and 256 <= input.shape[dim] < 512
            ),
        ),
        (bytes_of_a_tile, "mm", lambda input, mat2, **_: 12 * input.shape[0] + 4 * mat2.shape[1] == 2404),
        (
            product_of_conditions,
            "mm",
            lambda input, mat2, **_: input.shape[0] == 57 and mat2.stride(0) == 1 and mat2.shape[1] >= 200,
        ),
        (tail_of_a_stage, "sum", lambda input, *_, **__: input.numel() > 630000),
    ],
)
def test_the_search_solves_what_is_compared(function, op, is_wrong):
    def wrong(case):
        args, kwargs, _ = cases.materialize(case)
        return is_wrong(*args, **kwargs)

    assert not any(map(wrong, starts(op)))
    assert any(map(wrong, found_by(function, op)))


def test_two_functions_of_one_line_are_told_apart():
    first, second = (lambda n: n > 3), (lambda n: n > 5)
    assert noted(first, 4) == (True, {(0, True): (4, 3)})
    assert noted(second, 4) == (False, {(0, False): (4, 5)})


def test_a_call_of_the_search_is_noted():
    own = Implementation("own", SimpleNamespace(neg=lambda input, *, out=None: torch.neg(input) * (input.ndim < 2)), {})
    case = next(case for case in starts("neg") if not case.kwargs)
    reached = runner.prepare(case, CPU).new_paths(own.maker("neg"), False)
    assert [(one.left, one.right) for one in reached.compared] == [(len(case.args[0].shape), 2)]
