"""scaled_dot_product_attention: torch and the oracle agree, wrong answers fail, and the strategies reach what they are
meant to."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from test_ops import by_torch, call, drawn, failures, missing

from conformance import cases, result_samples, runner
from conformance.cases import Case, Same, Variant, View
from conformance.compare import compare
from conformance.ops import _attention as attention
from conformance.ops import _elementwise as elementwise
from conformance.ops.scaled_dot_product_attention import OP
from conformance.spec import Call, registry
from strategies import attention as calls
from strategies import dtypes as dtype_names
from strategies import layouts
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import digest

SPEC = registry()[OP]
MATH = "conformance.implementations.torch_math"
INF = math.inf


@pytest.fixture(autouse=True)
def _one_thread():
    """Small calls; threads that wait for one another cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensor(*shape: int, dtype: str = "float32", **more) -> TensorSpec:
    return TensorSpec(shape, dtype, **more)


def case(*shapes: tuple[int, ...], dtype: str = "float32", **kwargs) -> Case:
    return Case(op=OP, args=tuple(TensorSpec(shape, dtype) for shape in shapes), kwargs=kwargs)


def answer(found: Case) -> torch.Tensor:
    return SPEC.expected(call(found)).value


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["torch", MATH])
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_torch_passes(dtype, implementation):
    # Other calls that follow from each are those of torch.
    thorough = implementation == "torch"
    found = [runner.judge(case, implementation, thorough=thorough) for case in drawn(SPEC.cases((dtype,)), 24, 1)]
    assert [verdict for verdict in found if verdict.status not in ("passed", "deviation")] == []
    assert max(verdict.share or 0 for verdict in found) > 0.05


def test_calls_of_all_dtypes_together():
    assert failures(drawn(SPEC.cases(dtype_names.FLOATING), 40)) == []


@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_the_oracle_is_torchs_math_backend_in_float64(dtype):
    """That of float32 and the half types by NumPy, that of float64 by mpmath."""
    for found in drawn(SPEC.cases((dtype,)), 40, 2):
        args, kwargs, _ = cases.materialize(found)
        expected = SPEC.expected(call(found))
        wide = ([x.double() for x in args], {k: v if k == "attn_mask" else _wide(v) for k, v in kwargs.items()})
        if kwargs.get("present_key") is not None and "present_value_slot" in kwargs:
            continue  # Views lose what they are views of.
        mask = kwargs.get("attn_mask")
        if mask is not None and mask.dtype.is_floating_point:
            wide[1]["attn_mask"] = mask.double()
        theirs = attention.by_math(*wide[0], **wide[1])
        close = torch.isclose(expected.value, theirs, rtol=1e-9, atol=1e-12, equal_nan=True)
        assert (close | ~expected.judged.expand(close.shape)).all(), found


def _wide(argument):
    return argument.double() if isinstance(argument, torch.Tensor) and argument.is_floating_point() else argument


def test_an_algorithm_that_refuses_what_torch_chose_it_for_is_not_the_answer():
    def attend(*operands, **options):
        if torch.backends.cuda.flash_sdp_enabled():
            raise RuntimeError("pack_vnni2 is only supported when avx512 is supported")
        return torch.nn.functional.scaled_dot_product_attention(*operands, **options)

    operands = tuple(torch.ones(1, 2, 3, 4) for _ in range(3))
    assert attention.by(attend, attention.Arguments(*operands)).equal(operands[2])
    with pytest.raises(RuntimeError, match="q and k"):
        attention.by(lambda *_, **__: (_ for _ in ()).throw(RuntimeError("q and k")), attention.Arguments(*operands))


def test_by_hand():
    """Two keys of one element: weights e^0 and e^ln 3."""
    query, key = torch.tensor([[[[1.0]]]]), torch.tensor([[[[0.0], [math.log(3.0)]]]])
    value = torch.tensor([[[[4.0, 1.0], [8.0, 5.0]]]])
    found = SPEC.expected(Call((query, key, value), {"scale": 1.0}, None)).value
    assert torch.allclose(found, torch.tensor([7.0, 4.0], dtype=torch.float64))
    mask = torch.tensor([[math.log(3.0), 0.0]])
    found = SPEC.expected(Call((query, key, value), {"scale": 1.0, "attn_mask": mask}, None)).value
    assert torch.allclose(found, torch.tensor([6.0, 3.0], dtype=torch.float64))


def test_rows_without_keys_are_zero():
    shapes = ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4))
    mask = tensor(3, 5, values="normal", specials=(Special(5, "-inf", 5),))
    found = answer(case(*shapes, attn_mask=mask))
    assert (found[:, :, 1] == 0).all()
    assert (found[:, :, [0, 2]] != 0).all()
    assert (answer(case(*shapes, attn_mask=tensor(3, 5, dtype="bool", values="zeros"))) == 0).all()
    lower = case((1, 2, 5, 4), (1, 2, 3, 4), (1, 2, 3, 4), is_causal=True, causal_variant=Variant("LOWER_RIGHT"))
    assert (answer(lower)[:, :, :2] == 0).all()
    assert (answer(case((1, 2, 3, 4), (1, 2, 0, 4), (1, 2, 0, 4))) == 0).all()


def test_causal_variants():
    """Ascending values show which keys are seen."""
    shape = (1, 1, 5, 1)
    value = TensorSpec(shape, "float32", "ascending")  # -16, -14, -12, -10, -8
    args = (TensorSpec((1, 1, 3, 1), "float32", "zeros"), TensorSpec(shape, "float32"), value)

    def rows(**kwargs) -> list[float]:
        return answer(Case(op=OP, args=args, kwargs=kwargs)).flatten().round(decimals=9).tolist()

    assert rows(is_causal=True) == rows(is_causal=True, causal_variant=Variant("UPPER_LEFT")) == [-16, -15, -14]
    assert rows(is_causal=True, causal_variant=Variant("LOWER_RIGHT")) == [-14, -13, -12]
    assert rows(causal_variant=Variant("LOWER_RIGHT")) == [-12, -12, -12]


def test_what_is_not_finite_is_judged_where_it_is_certain():
    query, key = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 3, 1)
    value = torch.tensor([[1.0, INF, 1.0], [1.0, 1.0, math.nan], [-INF, 1.0, 1.0]]).view(1, 1, 3, 3)
    found = SPEC.expected(Call((query, key, value), {}, None))
    assert found.value[0, 0, 0].tolist()[:2] == [-INF, INF]
    assert found.value[0, 0, 0, 2].isnan()
    assert found.judged.all()
    # Nothing is said of values that are left out, or whose weight may be rounded to zero.
    causal = SPEC.expected(Call((query, key, value), {"is_causal": True}, None)).judged[0, 0]
    assert causal.tolist() == [[False, True, False], [False, True, True]]
    faint = torch.tensor([0.0, 0.0, -20.0])[None]
    assert SPEC.expected(Call((query, key, value), {"attn_mask": faint}, None)).judged[0, 0, 0].tolist() == [
        False,
        True,
        True,
    ]
    broken = key.clone()
    broken[0, 0, 2] = math.nan
    found = SPEC.expected(Call((query, broken, torch.ones_like(value)), {"is_causal": True}, None))
    assert not found.judged.any()
    found = SPEC.expected(Call((query, broken, torch.ones_like(value)), {}, None))
    assert found.value.isnan().all()
    assert found.judged.all()


def test_scores_that_leave_the_range_are_not_judged():
    large = torch.full((1, 1, 1, 4), 3e38)
    found = SPEC.expected(Call((large, large, large), {}, None))
    assert not found.judged.any()
    large = torch.full((1, 1, 3, 4), 1e308, dtype=torch.float64)
    found = SPEC.expected(Call((large * 0, large, large), {}, None))
    assert not found.judged.any(), "the sum of values"


def test_weights_that_hang_on_how_a_mask_is_rounded_are_not_judged():
    query = torch.tensor([[3e4], [3.0]]).view(1, 1, 2, 1)
    key, value = torch.arange(3.0).view(1, 1, 3, 1), torch.eye(3).view(1, 1, 3, 3)
    least = torch.finfo(torch.float32).min

    def judged(*rows):
        return SPEC.expected(Call((query, key, value), {"attn_mask": torch.tensor(rows)}, None)).judged[0, 0]

    # The first row's scores lie far apart: one key has all the weight, whatever is off.
    assert judged([0.0] * 3, [0.0] * 3).all()
    assert judged([least, 0.0, 0.0], [0.0, least, 0.0]).all()
    assert judged([0.0, least, least], [least, 0.0, least]).all()
    # For float32 all of these are one number, and exact scores are not.
    assert not judged([least] * 3, [least] * 3).any()
    assert judged([-1e12] * 3, [-1e4] * 3).tolist() == [[False] * 3, [True] * 3]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("keys", [64, 4096])
def test_power(dtype, keys):
    found = case((1, 2, 16, 64), (1, 2, keys, 64), (1, 2, keys, 64), dtype=dtype)
    expected = SPEC.expected(call(found))
    right = by_torch(found)
    assert compare(right, expected).passed
    zeros = compare(torch.zeros_like(right), expected)
    assert right.numel() - zeros.failed <= (0.02 if dtype == "bfloat16" else 0.01) * right.numel()
    off = {"float32": 2e-3, "float16": 1e-2, "bfloat16": 5e-2}[dtype]
    typical = right.double().abs().median()
    wrong = (right.double() + off * typical).to(right.dtype)
    assert compare(wrong, expected).failed > 0.5 * right.numel()


def test_what_is_refused_is_refused():
    kinds = set()
    for found in drawn(SPEC.refused(dtype_names.FLOATING), 300):
        before = cases.materialize(found)[2]
        args, kwargs, after = cases.materialize(found)
        with pytest.raises((RuntimeError, TypeError)) as raised:
            attention.composed(*args, **kwargs)
        kinds.add(raised.type)
        for was, now in zip(before, after, strict=True):
            assert digest(was) == digest(now)
    assert kinds == {RuntimeError, TypeError, NotImplementedError}


def test_torch_refuses_what_is_said_to_be_refused_of_it():
    """Of calls without a cache or a variant: torch's own function raises the same, but where it is known not to."""
    for found in drawn(SPEC.refused(dtype_names.FLOATING), 300):
        if any(name.startswith(("present", "causal")) for name in found.kwargs):
            continue
        args, kwargs, _ = cases.materialize(found)
        with pytest.raises((RuntimeError, TypeError)) as ours:
            attention.composed(*args, **kwargs)
        tensors = all(isinstance(x, torch.Tensor) and x.ndim > 1 for x in args)
        lengths_differ = tensors and args[1].shape[-2] != args[2].shape[-2]
        if lengths_differ or kwargs.get("dropout_p") or ("attn_mask" in kwargs and kwargs.get("is_causal")):
            continue
        with pytest.raises((RuntimeError, TypeError)) as theirs:
            attention.torch_attention(*args, **kwargs)
        assert theirs.type is ours.type, found


@pytest.mark.parametrize("variant", ["UPPER_LEFT", "LOWER_RIGHT"])
def test_causal_variants_of_broadcast_heads(variant):
    """torch takes heads that are broadcast, and others may leave them out; the variant counts in any case."""
    operands = (TensorSpec((2, heads, rows, 8), "float64") for heads, rows in ((4, 3), (1, 5), (1, 5)))
    found = Case(op=SPEC.name, args=(*operands,), kwargs={"is_causal": True, "causal_variant": Variant(variant)})
    args, kwargs, _ = cases.materialize(found)
    assert torch.allclose(attention.composed(*args, **kwargs), answer(found).double())


def features(found: Case) -> set[str]:
    query, key, value = found.args
    mask, slot, present = (found.kwargs.get(n) for n in ("attn_mask", "present_key_slot", "present_key"))
    names = {f"causal {found.kwargs.get('is_causal')} {getattr(found.kwargs.get('causal_variant'), 'name', None)}"}
    if len(query.shape) not in (3, 4):
        return {"left out"}
    length, keys, dim = query.shape[-2], key.shape[-2], query.shape[-1]
    names |= {f"{len(query.shape)}-D", "L < S" if length < keys else "L > S" if length > keys else "L = S"}
    heads, shared = query.shape[-3], key.shape[-3]
    names |= {"MQA" if shared == 1 < heads else "GQA" if heads > shared > 1 else "MHA"}
    names |= {"no queries"} if length == 0 else {"no keys"} if keys == 0 else set()
    names |= {"no batch"} if query.shape[0] == 0 else set()
    names |= {"one query"} if length == keys > 1 else {"several blocks"} if length > 64 and keys > 64 else set()
    names |= {"long dim"} if dim > 64 else {"dim of no power"} if dim & (dim - 1) else set()
    names |= {"another value dim"} if value.shape[-1] != dim else set()
    names |= {f"scale {type(found.kwargs['scale']).__name__}"} if "scale" in found.kwargs else set()
    names |= {f"query {query.values}", f"key {key.values}"}
    names |= {f"{n} {layouts.layout_class(x.layout, x.shape)}" for n, x in zip("qkv", found.args, strict=True)}
    if mask is not None:
        kind = "bool" if mask.dtype == "bool" else "own" if mask.dtype == query.dtype else "float32"
        names |= {f"mask {kind}", f"mask of {len(mask.shape)} dims", f"mask {mask.values}"}
        names |= {
            f"mask broadcast {len(mask.shape) - n}"
            for n, size in enumerate(mask.shape)
            if size == 1 < max(length, keys)
        }
        names |= {"mask with rows"} if any(s.run > 1 for s in mask.specials) else set()
    if isinstance(slot, View):
        names |= {"view at the end" if slot.start + slot.length == keys else "view before the end"}
        names |= {f"view {layouts.layout_class(key.layout, key.shape)}"}
    elif isinstance(slot, TensorSpec) and dtype_names.is_floating(slot.dtype):
        names |= {"slots elsewhere"}
    elif slot is not None:
        names |= {"position" if isinstance(slot, int) else f"positions {slot.dtype}"}
        names |= {f"cache {layouts.layout_class(present.layout, present.shape)}"}
        names |= {"stale rows"} if present.specials else set()
        names |= {"both slots"} if "present_value_slot" in found.kwargs else set()
        names |= {"chunk" if keys > 1 else "token", "several sequences"} if query.shape[0] > 1 else set()
    return names


def test_strategies_reach():
    wanted = {f"causal {a} {b}" for a in (None, True) for b in (None, "LOWER_RIGHT")} | {"causal True UPPER_LEFT"}
    wanted |= {"3-D", "4-D", "L < S", "L = S", "L > S", "MHA", "GQA", "MQA", "no queries", "no keys", "no batch"}
    wanted |= {"one query", "several blocks", "long dim", "dim of no power", "another value dim", "left out"}
    wanted |= {"scale int", "scale float"}
    wanted |= {f"query {recipe}" for recipe, _ in calls.REGIMES} | {f"key {recipe}" for _, recipe in calls.REGIMES}
    wanted |= {
        f"{name} {kind}" for name in "qkv" for kind in ("contiguous", "permuted", "sliced", "padded", "expanded")
    }
    wanted |= {"mask bool", "mask own", "mask float32", "mask with rows", "mask masked", "mask prefix"}
    wanted |= {f"mask of {rank} dims" for rank in (2, 3, 4)} | {f"mask broadcast {dim}" for dim in (1, 2, 3, 4)}
    wanted |= {"view at the end", "view before the end", "slots elsewhere", "position", "positions int64"}
    wanted |= {"positions int32", "stale rows", "both slots", "chunk", "several sequences"}
    wanted |= {
        f"{name} {kind}" for name in ("view", "cache") for kind in ("contiguous", "permuted", "padded", "sliced")
    }
    assert missing(SPEC.cases(dtype_names.FLOATING), wanted, features) == set()


def test_benchmarks_count_bytes_and_flops():
    for benchmark in SPEC.benchmarks:
        query, key, value = (elementwise.meta(operand) for operand in cases.operands(benchmark.case))
        assert benchmark.bytes == 2 * (2 * query.numel() + key.numel() + value.numel())
        pairs = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
        causal = 2 if benchmark.case.kwargs.get("is_causal") else 1
        assert benchmark.flops == 4 * pairs * query.shape[-1] // causal


@pytest.mark.parametrize("causal", [False, True])
def test_equal_weights_of_equal_values_are_rounded_alike(causal):
    """As a sum of equal terms in one accumulator."""
    head = (1, 2, 1029, 8)
    key = TensorSpec(head, "float32", seed=231, layout=Layout(expanded=(2,)))
    kwargs = {"is_causal": causal, "scale": 0.0}
    case = Case(op="scaled_dot_product_attention", args=(TensorSpec(head, "float32"), key, Same(1)), kwargs=kwargs)
    verdict = runner.judge(case, MATH, "cpu", ["values"])
    assert verdict.status == "passed", verdict


PARTS = (
    ({}, ((2, 4, 6, 8), (2, 4, 5, 8), (2, 4, 5, 3)), {0, 1, 2}),
    ({"is_causal": True}, ((2, 4, 6, 8), (2, 4, 5, 8), (2, 4, 5, 3)), {0, 1}),
    ({"enable_gqa": True}, ((2, 4, 6, 8), (2, 2, 5, 8), (2, 2, 5, 3)), {0, 2}),
    ({"enable_gqa": True, "attn_mask": tensor(6, 5)}, ((2, 4, 6, 8), (2, 1, 5, 8), (2, 1, 5, 8)), {0, 1, 2}),
    ({"attn_mask": tensor(4, 1, 5)}, ((4, 6, 8), (4, 5, 8), (4, 5, 8)), {0, 1}),
)


@pytest.mark.parametrize(("kwargs", "shapes", "free"), PARTS)
@pytest.mark.parametrize("by_position", [False, True])
def test_a_part_of_the_result_is_that_of_a_smaller_call(kwargs, shapes, free, by_position):
    found = case(*shapes, **kwargs)
    whole = call(found)
    if by_position:
        names = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        defaults = (None, 0.0, False, None, False)
        given = tuple(whole.kwargs.get(name, one) for name, one in zip(names, defaults, strict=True))
        whole = Call((*whole.args, *given), {}, None)
    whole = dataclasses.replace(whole, result=SPEC.reference(*whole.args, **whole.kwargs))
    parts = SPEC.parts(whole)
    assert isinstance(whole.result, torch.Tensor)
    assert {dim for axes in parts.axes.values() for dim in axes if dim is not None} == free
    places = {dim: torch.tensor([0, size - 1]) for dim, size in enumerate(whole.result.shape[:-1]) if dim in free}
    sample = result_samples._sample(parts, whole, places)
    assert torch.equal(SPEC.expected(sample.call).value, sample.of(SPEC.expected(whole).value))


@pytest.mark.parametrize(("shape", "taken"), [((), False), ((9,), False), ((1, 9), True), ((1, 1, 7, 9), True)])
def test_no_mask_of_fewer_than_two_dims_is_derived(shape, taken):
    """Some kernels of torch on CUDA refuse it, and its CPU takes it."""
    operands = (TensorSpec((1, 1, 7, 8), "float32"), *(TensorSpec((1, 1, 9, 8), "float32"),) * 2)
    case = Case(op="scaled_dot_product_attention", args=operands, kwargs={"attn_mask": TensorSpec(shape, "float32")})
    assert registry()[case.op].takes(case) is taken
