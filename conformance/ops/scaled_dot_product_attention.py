"""``scaled_dot_product_attention``: torch's signature, and after it a causal variant and a KV cache."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from functools import partial

import msgspec
import torch
from hypothesis import strategies as st

from conformance import case_changes, cuda_refusals, features
from conformance.cases import Argument, Case, Variant, View
from conformance.features import Features
from conformance.ops import _attention as attention
from conformance.ops import _attention_oracle, _models, _sizes
from conformance.ops import _elementwise as elementwise
from conformance.ops import _gradients_attention as gradients
from conformance.spec import Batch, Benchmark, Call, OpSpec, Parts
from strategies import attention as calls
from strategies import dtypes as dtype_names
from strategies.attention import Attention, Positions, Views
from strategies.specs import Layout, TensorSpec

OP = "scaled_dot_product_attention"
DTYPES = dtype_names.FLOATING


def case_of(call: Attention) -> Case:
    """The case that a drawn structure stands for: what is the default is left out."""
    variant = call.variant and Variant(call.variant)
    return elementwise.case(
        OP,
        (call.query, call.key, call.value),
        attn_mask=call.mask,
        is_causal=call.causal or None,
        causal_variant=variant,
        scale=call.scale,
        enable_gqa=call.grouped or None,
        **_cache(call),
    )


def _cache(call: Attention) -> dict[str, Argument]:
    match call.cache:
        case Views(key, value, start, elsewhere):
            dim, length = len(key.shape) - 2, key.shape[-2]
            slots = elsewhere or (View(1, dim, start, length), View(2, dim, start, length))
        case Positions(key, value, slot, both):
            slots = (slot, slot if both else None)
        case None:
            return {}
    return {"present_key": key, "present_value": value, "present_key_slot": slots[0], "present_value_slot": slots[1]}


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], elements: int = 0, scenes: bool = False) -> Case:
    names = [name for name in dtypes if name in DTYPES]
    if not elements and not scenes and draw(st.integers(0, 19)) == 19:
        return draw(left_out_cases(draw(dtype_names.dtypes(names))))
    work = {"work": _sizes.ATTENTION_WORK, "float64_work": _sizes.FLOAT64_ATTENTION_WORK}
    return case_of(draw(calls.attentions(names, **work, large=elements, scenes=scenes)))


def left_out_cases(dtype: str) -> st.SearchStrategy[Case]:
    """Calls that torch takes, and others may leave out."""
    shapes = (
        ((3, 8), (5, 8), (5, 8)),
        ((2, 1, 2, 3, 8), (2, 1, 2, 5, 8), (2, 1, 2, 5, 8)),
        ((1, 2, 3, 257), (1, 2, 5, 257), (1, 2, 5, 8)),
        ((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 300)),
        ((2, 4, 3, 8), (1, 4, 5, 8), (1, 4, 5, 8)),
        ((2, 4, 3, 8), (2, 1, 5, 8), (2, 1, 5, 8)),
    )
    return st.sampled_from(shapes).map(
        lambda found: Case(op=OP, args=tuple(TensorSpec(shape, dtype) for shape in found))
    )


def batch(case: Case) -> Batch | None:
    """The sequences. Of those whose length a slot says, the longest decides what mask is legal."""
    query = case.args[0]
    assert isinstance(query, TensorSpec)
    # The mask comes by place, too.
    positional = zip(("query", "key", "value", "attn_mask"), case.args, strict=False)
    named = dict(positional) | dict(sorted(case.kwargs.items()))
    tensors = {name: argument for name, argument in named.items() if isinstance(argument, TensorSpec)}
    mask, slot = tensors.get("attn_mask"), tensors.get("present_key_slot")
    if len(query.shape) < 4 or (mask is not None and slot is not None):
        return None
    sequences = query.shape[0]
    # What broadcasts has one for all.
    whole = (
        (name == "attn_mask" and len(spec.shape) < 4) or spec.shape[0] != sequences for name, spec in tensors.items()
    )
    return Batch(sequences, tuple(None if each else 0 for each in whole), 0)


def parts(call: Call) -> Parts:
    """Of calls without a cache the sequences, the heads of which none shares its keys with only some of the others, and
    the queries that all see the same keys."""
    assert isinstance(call.result, torch.Tensor)
    shape, rank = call.result.shape, call.result.ndim
    names = inspect.signature(attention.composed).parameters
    keys: dict[str, int | str] = {name: place for place, name in zip(range(len(call.args)), names, strict=False)}
    keys |= {name: name for name in call.kwargs}
    given = {name: call.kwargs[key] if isinstance(key, str) else call.args[key] for name, key in keys.items()}
    operands = [one for one in map(given.get, _NAMES[:3]) if isinstance(one, torch.Tensor) and one.ndim == rank]
    if rank < 3 or len(operands) < 3 or given.get("present_key") is not None:
        return Parts({})
    _, key, value = operands
    free = [dim for dim in range(rank - 3) if all(one.shape[dim] == shape[dim] for one in operands)]
    if key.shape[-3] == value.shape[-3] and key.shape[-3] in (1, shape[-3]):
        free.append(rank - 3)
    if not given.get("is_causal"):
        free.append(rank - 2)

    def along(name: str, tensor: torch.Tensor) -> tuple[int | None, ...]:
        # The second last dim of keys and values is none of the result.
        own = free if name in ("query", "attn_mask") else [dim for dim in free if dim < rank - 2]
        dims = range(rank - tensor.ndim, rank)
        return tuple(
            dim if dim in own and size == shape[dim] else None for dim, size in zip(dims, tensor.shape, strict=True)
        )

    tensors = ((name, given.get(name)) for name in _NAMES)
    axes = {keys[name]: along(name, one) for name, one in tensors if isinstance(one, torch.Tensor) and one.ndim <= rank}
    return Parts(axes, 2 * key.shape[-2])


_NAMES = ("query", "key", "value", "attn_mask")


def takes(case: Case) -> bool:
    """Tell whether a mask has two dims or more, which some kernels of torch on CUDA need; and whether one without
    elements is of no queries or no keys: where the result has no elements either, torch takes any."""
    named = case_changes.named_arguments(case)
    mask, key = named.get("attn_mask"), named["key"]
    if not isinstance(mask, TensorSpec) or (len(mask.shape) > 1 and 0 not in mask.shape):
        return True
    if len(mask.shape) < 2:
        return False
    query = named["query"]
    if (
        not isinstance(query, TensorSpec)
        or not isinstance(key, TensorSpec)
        or min(map(len, (query.shape, key.shape))) < 2
    ):
        return True
    scores = (*query.shape[:-1], key.shape[-2])
    return all(size in (1, whole) for size, whole in zip(mask.shape[::-1], scores[::-1], strict=False))


# --- refused calls -----------------------------------------------------------------------------------------------

QUERY, KEY, VALUE = (2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)
CACHE_KEY, CACHE_VALUE = (2, 2, 9, 8), (2, 2, 9, 6)
_WRONG_SHAPES = (
    ((2, 4, 3, 7), KEY, VALUE),
    (QUERY, KEY, (2, 2, 6, 6)),
    (QUERY, (3, 2, 5, 8), (3, 2, 5, 6)),
    (QUERY, (2, 3, 5, 8), (2, 3, 5, 6)),
    (QUERY, (2, 8, 5, 8), (2, 8, 5, 6)),
    ((8,), (8,), (8,)),
)
_WRONG_MASKS = ((3, 4), (2, 5), (3, 3, 5), (2, 2, 3, 5), (3, 1, 1, 5), (1, 2, 4, 3, 5), (1, 1, 0))


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    names = [name for name in dtypes if name in DTYPES]
    dtype = draw(dtype_names.dtypes(names))
    if draw(st.booleans()):
        return draw(_refused_caches(dtype))
    kwargs: dict[str, Argument] = {"enable_gqa": True}
    operands = [TensorSpec(shape, dtype) for shape in (QUERY, KEY, VALUE)]
    number = draw(st.integers(0, 2))
    kinds = ["type", "mask type", "flag", "number", "variant", "dtype", "integers", "mask dtype", "shapes", "heads"]
    match draw(st.sampled_from([*kinds, "mask", "mask and causal", "dropout"])):
        case "type":
            wrong = draw(st.sampled_from((2.0, *elementwise.WRONG_TYPES)))
            return Case(op=OP, args=(*operands[:number], wrong, *operands[number + 1 :]))
        case "mask type":
            kwargs["attn_mask"] = draw(st.sampled_from((1.0, "x", True)))
        case "flag":
            kwargs[draw(st.sampled_from(("is_causal", "enable_gqa")))] = draw(st.sampled_from((1, None, "x")))
        case "number":
            kwargs[draw(st.sampled_from(("scale", "dropout_p")))] = "x"
        case "variant":
            kwargs |= {"is_causal": True, "causal_variant": draw(st.sampled_from(("UPPER_LEFT", 1, True)))}
        case "dtype":
            other = draw(dtype_names.dtypes([name for name in DTYPES if name != dtype]))
            operands[number] = msgspec.structs.replace(operands[number], dtype=other)
        case "integers":
            whole = draw(dtype_names.dtypes((*dtype_names.INTEGRAL, "bool")))
            operands = [msgspec.structs.replace(spec, dtype=whole) for spec in operands]
        case "mask dtype":
            kept = ("bool", "float32", dtype)
            other = draw(dtype_names.dtypes([name for name in dtype_names.ALL if name not in kept]))
            kwargs["attn_mask"] = TensorSpec((3, 5), other)
        case "shapes":
            operands = [TensorSpec(shape, dtype) for shape in draw(st.sampled_from(_WRONG_SHAPES))]
        case "heads":
            kwargs["enable_gqa"] = False
        case "mask":
            name = draw(st.sampled_from(("bool", dtype)))
            kwargs["attn_mask"] = TensorSpec(draw(st.sampled_from(_WRONG_MASKS)), name)
        case "mask and causal":
            name = draw(st.sampled_from(("bool", dtype)))
            kwargs |= {"attn_mask": TensorSpec((3, 5), name), "is_causal": True}
        case "dropout":
            kwargs["dropout_p"] = draw(st.sampled_from((0.5, 1, 1.0, 0.001, -0.5, 1.5)))
    return Case(op=OP, args=tuple(operands), kwargs=kwargs)


@st.composite
def _refused_caches(draw: st.DrawFn, dtype: str) -> Case:
    """Nothing of a cache may be written by a call that is refused."""
    query, key, value = (TensorSpec(shape, dtype) for shape in (QUERY, KEY, VALUE))
    caches: dict[str, TensorSpec] = {
        "present_key": TensorSpec(CACHE_KEY, dtype),
        "present_value": TensorSpec(CACHE_VALUE, dtype),
    }
    positions: dict[str, Argument] = {**caches, "present_key_slot": 2}
    rows: dict[str, TensorSpec] = {
        "present_key": TensorSpec((2, 2, 2, 8), dtype),
        "present_value": TensorSpec((2, 2, 2, 6), dtype),
    }
    slots = {"present_key_slot": View(1, 2, 3, 2), "present_value_slot": View(2, 2, 3, 2)}
    views: dict[str, Argument] = {**rows, **slots}
    which = draw(st.sampled_from(("present_key", "present_value")))
    slot = f"{which}_slot"
    kinds = ("missing", "capacity", "unequal", "shape", "dtype", "expanded", "slot type", "dropout", "positions")
    wrong: dict[str, Argument]
    match draw(st.sampled_from((*kinds, "view shape", "view dtype", "view expanded", "one view", "mask"))):
        case "missing":
            left = draw(st.sampled_from(("present_key", "present_value", "present_key_slot")))
            wrong = {name: given for name, given in positions.items() if name != left}
        case "capacity":
            wrong = positions | {"present_key_slot": draw(st.sampled_from((5, -1, 9, -5, 2**40)))}
        case "unequal":
            wrong = positions | {
                "present_value_slot": draw(st.sampled_from((3, 1, TensorSpec((2,), "int64", "zeros"))))
            }
        case "shape":
            full = caches[which].shape
            shapes = ((1, *full[1:]), (2, 4, *full[2:]), (*full[:3], 5), full[1:], (*full[:2], 4, full[3]))
            wrong = positions | {which: TensorSpec(draw(st.sampled_from(shapes)), dtype)}
        case "dtype":
            other = draw(dtype_names.dtypes([name for name in DTYPES if name != dtype]))
            wrong = positions | {which: msgspec.structs.replace(caches[which], dtype=other)}
        case "expanded":
            layout = Layout(expanded=(draw(st.integers(0, 3)),))
            wrong = positions | {which: msgspec.structs.replace(caches[which], layout=layout)}
        case "slot type":
            wrong = positions | {slot: draw(st.sampled_from((True, "x", 2.0, (1, 2))))}
        case "dropout":
            wrong = draw(st.sampled_from((positions, views))) | {"dropout_p": 0.5}
        case "positions":
            shape = draw(st.sampled_from(((3,), (), (2, 1), (1,))))
            wrong = positions | {"present_key_slot": TensorSpec(shape, "int64", "zeros")}
        case "view shape":
            wrong = views | {slot: TensorSpec(draw(st.sampled_from(((2, 2, 3, 8), (2, 1, 2, 8), (2, 2, 2, 5)))), dtype)}
        case "view dtype":
            other = draw(dtype_names.dtypes([name for name in DTYPES if name != dtype]))
            wrong = views | {which: msgspec.structs.replace(rows[which], dtype=other)}
        case "view expanded":
            layout = Layout(expanded=(draw(st.integers(0, 3)),))
            wrong = views | {slot: msgspec.structs.replace(rows[which], layout=layout)}
        case "one view":
            wrong = views | {slot: None}
        case "mask":
            wrong = positions | {"attn_mask": TensorSpec(draw(st.sampled_from(((3, 5), (3, 9), (3, 8)))), "bool")}
    return Case(op=OP, args=(query, key, value), kwargs={"enable_gqa": True, **wrong})


# --- the rest ----------------------------------------------------------------------------------------------------


def writes(case: Case) -> Collection[int]:
    """The operands that hold a cache: those that the slots are views of, or the present ones where they are numbers."""
    numbers, found, names = {}, 0, sorted(case.kwargs)
    for name, argument in (*enumerate(case.args), *((name, case.kwargs[name]) for name in names)):
        if isinstance(argument, TensorSpec):
            numbers[name], found = found, found + 1
        elif isinstance(argument, View):
            numbers[name] = argument.operand
    slot = case.kwargs.get("present_key_slot")
    whole = isinstance(slot, int) or (isinstance(slot, TensorSpec) and not dtype_names.is_floating(slot.dtype))
    wanted = ("present_key", "present_value") if whole else ("present_key_slot", "present_value_slot")
    return {numbers[name] for name in wanted if name in numbers} if slot is not None else set()


MANY = 1024
"""Heads or batches beyond which a limit of the grid is what counts, which few cases are large enough for."""


def features_of(case: Case) -> Features:
    """Sizes as attention has them, the form of mask and cache, and of the operands what does not follow from those."""
    given = dict(zip(("query", "key", "value"), case.args, strict=True)) | case.kwargs
    specs = {name: spec for name, spec in given.items() if isinstance(spec, TensorSpec) and "slot" not in name}
    # What is left out may have fewer dims.
    query, key, value = ((0,) * (3 - len(s.shape)) + s.shape for s in map(specs.__getitem__, ("query", "key", "value")))
    cache, slot = specs.get("present_key"), case.kwargs.get("present_key_slot")
    keys, form = key[-2], "none"
    if isinstance(slot, View):
        form = "views"
    elif isinstance(slot, int):
        form, keys = "position", keys + slot
    elif isinstance(slot, TensorSpec):
        form = "elsewhere" if dtype_names.is_floating(slot.dtype) else f"positions of {slot.dtype}"
    found: Features = {
        "dtype": (specs["query"].dtype,),
        "cache": (form,),
        "batch": ("none" if len(query) < 4 else features.size(min(query[0], MANY)),),
        "heads": (features.size(min(query[-3], MANY)) if query[-3] == key[-3] else "grouped",),
        "queries": (features.size(query[-2]),),
        "keys": (features.size(keys),),
        "head dim": (features.row(query[-1]),),
        "value dim": ("equal" if value[-1] == query[-1] else "other",),
        "mask": ("none",),
        "causal": ("none",),
        "scale": (features.kind(given.get("scale")),),
    }
    for name, count in (("batch", query[0] if len(query) > 3 else 0), ("heads", query[-3])):
        if count > MANY:
            found[f"{name} {features.REACH}"] = (features.reach(count),)
    if given.get("is_causal"):
        variant = given.get("causal_variant")
        found["causal"] = (variant.name if isinstance(variant, Variant) else "default",)
    if mask := specs.get("attn_mask"):
        found["mask"] = (
            "bool" if mask.dtype == "bool" else "other" if mask.dtype != specs["query"].dtype else "float",
        )
        found["mask dims"] = (str(len(mask.shape)),)
        found["mask values"] = (features.VALUES[mask.values],)
        found["mask planted"] = features.specials(mask)
        found["mask ones"] = ("".join("1" if size == 1 else "n" for size in mask.shape[-2:]),)
    if cache is not None:
        found["present_key"] = ("poisoned" if any(special.run > 1 for special in cache.specials) else "tensor",)
    operands = [specs[name] for name in ("query", "key", "value")]
    found["planted"] = tuple({one for spec in operands for one in features.specials(spec) if one != "none"}) or (
        "none",
    )
    # Of queries and keys together: whether few keys count or many, and how large scores are.
    found["scores"] = (f"{operands[0].values} by {operands[1].values}",)
    found["weighed"] = (features.VALUES[operands[2].values],)
    found |= {f"{name} layout": (features.layout(spec),) for name, spec in specs.items()}
    return found


def left_out(call: Call) -> bool:
    return attention.left_out(attention.Arguments(*call.args, **call.kwargs))


def benchmark(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, dim: int = 128, *, causal: bool = False
) -> Benchmark:
    """bfloat16. Of a causal one half the products are needed."""
    shapes = [(batch, heads, queries, dim), *2 * [(batch, kv_heads, keys, dim)]]
    query, key, value = (TensorSpec(shape, "bfloat16") for shape in shapes)
    found = Attention(query=query, key=key, value=value, causal=causal, grouped=heads != kv_heads)
    moved = 2 * batch * dim * (2 * heads * queries + 2 * kv_heads * keys)
    return Benchmark(case_of(found), moved, 4 * batch * heads * queries * keys * dim // (2 if causal else 1))


SPEC = OpSpec(
    name=OP,
    reference=attention.composed,
    cases=cases,
    large=lambda elements: lambda dtypes: cases(dtypes, elements),
    scenes=lambda dtypes: cases(dtypes, scenes=True),
    refused=refused,
    dtypes=DTYPES,
    batch=batch,
    parts=parts,
    expected=_attention_oracle.expected,
    gradients=gradients.attended,
    checks=("memory", "values", "metadata", "inputs_unchanged", "written", "deterministic", "errors"),
    # Prompts of models with 32 heads of 128 and of 64, a long one, and one token of each of some sequences.
    benchmarks=(
        benchmark(4, 32, 32, 4096, 4096),
        benchmark(4, 32, 32, 4096, 4096, causal=True),
        benchmark(4, 32, 8, 4096, 4096, causal=True),
        *(benchmark(4, 32, 32, 4096, 4096, 64, causal=causal) for causal in (False, True)),
        benchmark(1, 8, 8, 16384, 16384, causal=True),
        *(benchmark(count, 32, 8, 1, keys) for count, keys in ((16, 8192), (1, 8192), (1, 65536), (64, 1024))),
        # A call whose time is the host's.
        benchmark(1, 8, 8, 16, 16, 64),
    ),
    sampled=_models.attention(OP, 10),
    cuda_refuses=partial(cuda_refusals.cuda_refuses, OP),
    left_out=left_out,
    strides=False,
    writes=writes,
    takes=takes,
    features=features_of,
)
