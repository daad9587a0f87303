"""Coverage: what a case shows, how counts add up, what is feasible, and the floor."""

from __future__ import annotations

import itertools
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings

from conformance import cases, coverage, drawing, feasibility, features, profiles
from conformance import spec as specs
from conformance.cases import Case, NonFinite, Same
from conformance.coverage import Counter, Coverage, Seen
from strategies import dtypes, shapes, values
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import tensors

MATRIX = TensorSpec((3, 8), "float16", "ascending", layout=Layout(order=(1, 0)), specials=(Special(0, "-inf"),))


@cache
def drawn(op: str, dtype: str, count: int) -> list[Case]:
    """Cases of the first rounds of the ci profile, and of rounds beyond it where more are wanted."""
    found: list[Case] = []
    dtypes_of_op = specs.registry()[op].dtypes
    ci = settings(profiles.PROFILES["ci"], max_examples=max(count, profiles.PROFILES["ci"].max_examples))
    for part in profiles.rounds(op, dtype, False, dtypes_of_op, ci, 0):
        found += drawing.drawn(part.draws, part.seed, part.examples)
        if len(found) >= count:
            break
    return found


def shown(case: Case) -> set[str]:
    return set(features.names(specs.registry()[case.op].features(case)))


def test_features_of_a_case():
    out = TensorSpec((2, 9), "float32", layout=Layout(offset=3))
    case = Case(op="add", args=(MATRIX, float("nan")), kwargs={"alpha": -1, "out": out})
    assert set(features.names(features.of_arguments(case))) == {
        "1st=tensor", "1st dtype=float16", "1st rank=2", "1st size=to 64", "1st row=power", "1st layout=permuted",
        "1st values=ordered", "1st specials=inf", "2nd=not finite", "alpha=negative int", "out=strided",
    }  # fmt: skip
    assert features.elementwise(case) == features.of_arguments(case), "one tensor does not broadcast"
    other = Case(
        op="add", args=(Same(0), NonFinite("inf"), TensorSpec((0, 3), "int8"), True, 2), kwargs={"out": Same(0)}
    )
    assert set(features.names(features.of_arguments(other))) == {
        "1st=same tensor", "2nd=not finite", "3rd=tensor", "3rd dtype=int8", "3rd rank=2", "3rd size=empty",
        "3rd layout=contiguous", "4th=bool", "5th=int", "out=same tensor",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("size", "row", "elements"),
    [(1, "1", "one"), (2, "power", "to 64"), (3, "power - 1", "to 64"), (5, "power + 1", "to 64"),
     (64, "power", "to 64"), (65, "power + 1", "to 1024"), (70, "other", "to 1024"), (1025, "power + 1", "more")],
)  # fmt: skip
def test_size_classes(size, row, elements):
    assert (features.row(size), features.size(size)) == (row, elements)


@pytest.mark.parametrize(
    ("first", "second", "classes"),
    [((33, 5), (1, 5), ["1xM"]), ((1, 5), (33, 5), ["1xM"]), ((33, 5), (5,), ["M"]), ((33, 5), Same(0), ["equal"]),
     ((33, 1), (5,), ["both"]), ((33, 5), 2.0, []), ((33, 5), (4,), [])],
)  # fmt: skip
def test_how_operands_broadcast(first, second, classes):
    operands = [TensorSpec(one, "float32") if isinstance(one, tuple) else one for one in (first, second)]
    case = Case(op="mul", args=tuple(operands), kwargs={"out": TensorSpec((), "float32")})
    assert [name for name in shown(case) if name.startswith("broadcast=")] == [f"broadcast={one}" for one in classes]


def test_how_bounds_broadcast():
    low, high = TensorSpec((1, 5), "float32"), TensorSpec((33, 1), "float32")
    case = Case(op="clamp", args=(TensorSpec((33, 5), "float32"), low), kwargs={"max": high})
    assert {name for name in shown(case) if name.startswith("broadcast=")} == {
        "broadcast=1xM", "broadcast=Nx1", "broadcast=both"
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("ops", ["add sub mul div pow bitwise_and bitwise_or", "eq ne lt le gt ge", "clamp"])
def test_the_usual_broadcasts_are_drawn(ops):
    """Each pattern in at least 3% of the cases with two tensors; some with a dim of several blocks."""
    searches = [(op, dtype) for op in ops.split() for dtype in specs.registry()[op].dtypes]
    found = [case for op, dtype in searches for case in drawn(op, dtype, -(-100 // len(searches)) * 10)]
    assert len(found) >= 1000
    largest: dict[str, list[int]] = {pattern: [] for pattern in features.BROADCASTS}
    pairs = 0
    for case in found:
        classes = specs.registry()[case.op].features(case).get("broadcast", ())
        pairs += bool(classes)
        for pattern in classes:
            largest[pattern].append(max(size for spec in cases.operands(case) for size in (*spec.shape, 0)))
    for pattern in shapes.PATTERNS:
        assert len(largest[pattern]) >= 0.03 * pairs, pattern
        assert sum(size > 2 * shapes.BLOCKS[0] for size in largest[pattern]) >= 0.1 * len(largest[pattern]), pattern


def test_every_recipe_and_special_has_a_class():
    for dtype in dtypes.NAMES:
        for name in values.recipes_of(dtype):
            assert name in features.VALUES
        for name in values.specials_of(dtype):
            assert name in features.SPECIALS


def test_a_pair_is_hit_where_one_case_has_both():
    counter = Counter()
    counter.add(Case(op="abs", args=(TensorSpec((3, 4), "float32"),)))
    counter.add(Case(op="abs", args=(TensorSpec((), "int8"),)))
    counter.searched("abs", "float32")
    (found,) = counter.coverage()
    holes = set(found.holes)
    assert "1st dtype=int8 & 1st rank=2" in holes
    assert "1st dtype=float32 & 1st rank=2" not in holes
    assert "1st dtype=int8 & 1st rank=0" not in holes
    assert "1st rank=5" in holes, "a class that no case shows, and torch takes"
    assert "1st dtype=bool" in holes
    assert found.features_hit < found.features
    assert len(holes) == found.features - found.features_hit + found.feasible - found.hit


def test_counts_add_up_in_any_order():
    found = [case for op in ("add", "mm") for case in drawn(op, "float32", 40)[:20]]
    whole = Counter()
    for case in found:
        whole.add(case)
    parts = [Counter() for _ in range(3)]
    for number, case in enumerate(found):
        parts[number % 3].add(case)
    for part, op in itertools.product((whole, parts[1]), ("add", "mm")):
        part.searched(op, "float32")
    for order in ((0, 1, 2), (2, 0, 1)):
        merged = Counter()
        for number in order:
            merged.merge(msgspec.json.decode(msgspec.json.encode(parts[number].seen()), type=list[Seen]))
        for op in ("add", "mm"):
            each = [shown(case) for case in found if case.op == op]
            for pair in itertools.combinations(sorted(set().union(*each)), 2):
                assert merged.hits(op, *pair) == whole.hits(op, *pair) == any({*pair} <= one for one in each)
        assert not merged.whole("mm")
    for dtype in specs.registry()["mm"].dtypes:
        merged.searched("mm", dtype)
    assert merged.whole("mm")


@settings(max_examples=150, derandomize=True, database=None)
@given(tensors(shapes.shapes(max_rank=5), dtypes.ALL))
def test_what_one_tensor_shows_does_not_contradict_itself(spec):
    for first, second in itertools.combinations(features.names(features.tensor("1st", spec)), 2):
        assert not feasibility.contradictory(first, second) or first.split("=")[0] == second.split("=")[0]


@pytest.mark.parametrize(
    ("first", "second"),
    [("rank=0", "layout=permuted"), ("dtype=int8", "specials=nan"), ("size=one", "row=power"), ("rank=0", "row=1"),
     ("size=empty", "values=plain"), ("dtype=bool", "values=extreme"), ("rank=1", "layout=padded")],
)  # fmt: skip
def test_contradictions(first, second):
    assert feasibility.contradictory(f"1st {first}", f"1st {second}")
    assert not feasibility.contradictory(f"1st {first}", f"2nd {second}")


@pytest.mark.parametrize(
    ("op", "first", "second", "feasible"),
    [
        ("mm", "1st dtype=float16", "2nd dtype=float32", False),
        ("mm", "1st size=one", "2nd size=more", True),
        ("mm", "1st size=empty", "2nd size=more", True),
        ("mm", "1st layout=permuted", "2nd specials=nan", True),
        ("add", "1st dtype=float16", "2nd dtype=float32", True),
        # If the other one is a float.
        ("add", "1st dtype=int8", "alpha=float", True),
        ("add", "1st layout=expanded", "out=same tensor", False),
        ("add", "1st size=to 1024", "2nd size=more", True),
        ("add", "broadcast=1xHx1x1", "1st rank=4", True),
        ("add", "broadcast=1xHx1x1", "1st rank=2", False),
        ("add", "broadcast=1xM", "1st size=more", True),
        ("add", "broadcast=1xM", "1st size=one", False),
        ("add", "broadcast=Nx1", "2nd layout=permuted", True),
        ("add", "broadcast=Nx1", "2nd=float", False),
        ("add", "broadcast=both", "out=same tensor", False),
        ("add", "broadcast=M", "out=strided", True),
        ("relu", "1st layout=expanded", "inplace=True", False),
        ("relu", "1st layout=expanded", "inplace=False", True),
        ("scaled_dot_product_attention", "mask=bool", "causal=default", False),
        ("scaled_dot_product_attention", "cache=position", "key layout=expanded", True),
    ],
)
def test_only_what_torch_refuses_is_infeasible(op, first, second, feasible):
    evidence = feasibility.Evidence(op, [*drawn(op, "float32", 40), *(drawn(op, "int8", 20) if op == "add" else ())])
    assert evidence.feasible(first, second) == evidence.feasible(second, first) == feasible


def test_classes_that_torch_refuses_are_not_expected():
    evidence = feasibility.Evidence("mm", drawn("mm", "float32", 40)[:5])
    names = {name for case in drawn("mm", "float32", 40)[:5] for name in features.names(features.of_arguments(case))}
    unseen = set(evidence.unseen(names))
    assert not {"1st rank=1", "1st rank=3", "1st dtype=int8"} & unseen
    assert "1st dtype=float64" in unseen - names


@pytest.mark.parametrize("op", ["mm", "add"])
def test_what_is_drawn_is_never_called_infeasible(op):
    """Evidence from some cases against pairs that others have."""
    # As many as a search of one dtype has: of a few, none may show a feature in a case that can have another one.
    found = drawn(op, "float32", 100)
    evidence = feasibility.Evidence(op, found[:80])
    for case in found[80::4]:
        names = filter(features.paired, features.names(specs.registry()[op].features(case)))
        for first, second in itertools.combinations(names, 2):
            if first in evidence._having and second in evidence._having and first.split("=")[0] != second.split("=")[0]:
                assert evidence.feasible(first, second) or feasibility.contradictory(first, second), cases.encode(case)


def test_the_table_names_what_is_missing_most():
    holes = ["1st rank=5", "1st rank=5 & out=empty", "1st rank=5 & 1st dtype=int8"]
    lines = coverage.table([Coverage("add", 10, 9, 200, 198, holes), Coverage("mm", 4, 4, 6, 6, [])])
    assert lines[1].split()[:4] == ["add", "198", "200", "99.0%"]
    assert "1st rank=5 (3), out=empty (1)" in lines[1]
    assert lines[2].split() == ["mm", "6", "6", "100.0%", "-"]


def test_the_floor_holds_for_ops_that_were_searched_to_the_end():
    counter = Counter()
    for case in drawn("isnan", "float32", 20):
        counter.add(case)
    found = [Coverage("isnan", 10, 9, 1000, 1000 * coverage.FLOOR - 1, ["1st rank=5 & 1st dtype=int8"])]
    assert coverage.below_floor(counter, found) == []
    for dtype in specs.registry()["isnan"].dtypes:
        counter.searched("isnan", dtype)
    assert coverage.below_floor(counter, found) == found
    assert coverage.below_floor(counter, [msgspec.structs.replace(found[0], hit=950)]) == []
    said = coverage.complaint(found[0])
    assert "isnan: " in said
    assert "1st rank=5 & 1st dtype=int8" in said


def test_calls_beyond_the_memory_say_nothing():
    far = [TensorSpec((1, 1 << 20), "float64"), TensorSpec((1 << 20, 1), "float64")]
    assert feasibility.Evidence("add", []).accepts(Case(op="add", args=tuple(far))) is None
    assert feasibility.Evidence("mm", []).accepts(Case(op="mm", args=tuple(reversed(far)))) is None


def test_calls_made_of_one_whose_out_begins_in_front_of_an_operand_are_asked_for():
    """A layout without room in front is no call; torch raised out of the end of a run."""
    x = TensorSpec((3, 5), "float32", layout=Layout(offset=7))
    y = TensorSpec((3, 5), "float32")
    examples = [Case(op="add", args=(x, y), kwargs={"out": Same(0, shift=-7)}), Case(op="add", args=(y, y))]
    evidence = feasibility.Evidence("add", examples)
    names = sorted({name for case in examples for name in features.names(evidence.spec.features(case))})
    shifted = [name for name in names if name.startswith("out=") and name != "out=no"]
    for pair in itertools.product(shifted, ["1st layout=contiguous", "1st layout=permuted", "1st rank=0"]):
        assert evidence.feasible(*pair) in (True, False)
