"""Calls as models and engines make them, drawn by chance: what ``nox -s bench -- --sampled`` times.

Sizes are those of published models, tokens those of prefill, decode, speculative and ragged batches, layouts those of
real code. A draw depends on the state of its ``random.Random`` alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from random import Random

from conformance.cases import Argument, Case
from conformance.spec import Benchmark, Sampled
from strategies import dtypes as dtype_names
from strategies.models import MODELS, Model
from strategies.specs import CONTIGUOUS, Layout, TensorSpec

Shape = tuple[int, ...]


PREFILL = (64, 128, 197, 256, 384, 512, 577, 777, 1000, 1024, 1500, 2048, 3000, 4096, 4608, 8192)
SEQUENCES = (1, 2, 3, 5, 8, 16, 24, 33, 64, 128, 256)
ODD = (77, 300, 333, 1001, 5003, 10007)
"""Last dims that no vector divides."""


def model(chance: Random) -> Model:
    """A model, or what one of two or four GPUs has of it."""
    found, shards = chance.choice(MODELS), chance.choice((1, 1, 1, 2, 4))
    if found.heads % shards or found.intermediate % shards:
        return found
    return dataclasses.replace(
        found,
        intermediate=found.intermediate // shards,
        heads=found.heads // shards,
        kv_heads=max(found.kv_heads // shards, 1),
    )


def tokens(chance: Random) -> int:
    """The tokens of a step: of prompts, of one or a few of each sequence, or of any mixture of these."""
    match chance.choice(("prefill", "prefill", "decode", "speculative", "ragged")):
        case "prefill":
            return chance.choice(PREFILL)
        case "decode":
            return chance.choice(SEQUENCES)
        case "speculative":
            return chance.choice(SEQUENCES) * chance.choice((3, 4, 5, 8))
        case _:
            return chance.randint(9, 6000)


def dtype(chance: Random) -> str:
    return chance.choice(("bfloat16",) * 12 + ("float16",) * 5 + ("float32",) * 3)


def tensor(shape: Shape, dtype: str, layout: Layout = CONTIGUOUS, values: str = "normal") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, layout=layout, values=values)


def moved(*specs: TensorSpec) -> int:
    """Bytes of these tensors; an element that is expanded counts once."""
    return sum(
        dtype_names.format_of(spec.dtype).bits
        // 8
        * math.prod(size for dim, size in enumerate(spec.shape) if dim not in spec.layout.expanded)
        for spec in specs
    )


# --- elementwise -------------------------------------------------------------------------------------------------


def activations(chance: Random, dtype: str) -> TensorSpec:
    """Return an operand of an elementwise function: rows of a model, as they are or as real code has them."""
    size, count = model(chance), tokens(chance)
    match chance.choice(("rows", "rows", "half", "heads", "fused", "odd")):
        case "rows":
            return tensor((count, chance.choice((size.hidden, size.intermediate))), dtype)
        case "half":  # of gate and up projections in one
            width = size.intermediate
            return tensor((count, width), dtype, Layout(padding=(0, width), offset=chance.choice((0, width))))
        case "heads":  # of (B, L, H, D), transposed
            return tensor(_batched(chance, size.heads, count, size.head_dim), dtype, Layout(order=(0, 2, 1, 3)))
        case "fused":  # the queries, or the keys, of one projection
            more = 2 * size.kv_heads
            layout = Layout(padding=(0, more, 0), offset=chance.choice((0, size.head_dim)))
            return tensor((count, size.heads, size.head_dim), dtype, layout)
        case _:
            return tensor((count, chance.choice((*ODD, size.vocabulary))), dtype)


def _batched(chance: Random, heads: int, count: int, dim: int) -> Shape:
    batch = chance.choice((1, 2, 4, 8))
    return (batch, heads, max(count // batch, 1), dim)


def unary(op: str, weight: float, flops: int, *more: Argument) -> Sampled:
    """A function of one tensor, and of ``more`` arguments."""

    def draw(chance: Random) -> Benchmark:
        input = activations(chance, dtype(chance))
        case = Case(op=op, args=(input, *more))
        return Benchmark(case, 2 * moved(input), flops * math.prod(input.shape))

    return Sampled("elementwise", weight, draw)


def binary(op: str, weight: float) -> Sampled:
    """A function of two tensors, the second of which may be contiguous where the first is not, a row or a column."""

    def draw(chance: Random) -> Benchmark:
        input = activations(chance, dtype(chance))
        shape = input.shape
        match chance.choice(("alike", "alike", "contiguous", "row", "column", "mask")):
            case "alike":
                other = input
            case "contiguous":
                other = tensor(shape, input.dtype)
            case "row":
                other = tensor(shape[-1:], input.dtype)
            case "column":
                other = tensor((*shape[:-1], 1), input.dtype)
            case _:
                other = tensor((1,) * (len(shape) - 2) + shape[-2:], input.dtype)
        return Benchmark(Case(op=op, args=(input, other)), 2 * moved(input) + moved(other), math.prod(shape))

    return Sampled("elementwise", weight, draw)


# --- rows --------------------------------------------------------------------------------------------------------


def softmax(op: str, weight: float) -> Sampled:
    """Of scores, logits, or experts, mostly along the last dim."""

    def draw(chance: Random) -> Benchmark:
        size, count, kind = model(chance), tokens(chance), dtype(chance)
        dim = -1
        match chance.choice(("scores", "scores", "logits", "experts", "odd", "middle")):
            case "scores":
                shape = (chance.choice((1, 2, 4, 8)), size.heads, count, chance.choice((count, *PREFILL)))
            case "logits":
                shape = (count, size.vocabulary)
            case "experts":
                shape = (count, chance.choice((8, 32, 60, 64, 128, 256)))
            case "odd":
                shape = (count, chance.choice(ODD))
            case _:
                shape, dim = (chance.choice((1, 2, 8)), count, chance.choice((16, 80, 300, 512, 1024))), 1
        input = tensor(shape, kind)
        return Benchmark(Case(op=op, args=(input, dim)), 2 * moved(input), 5 * math.prod(shape))

    return Sampled("rows", weight, draw)


def cumulative(op: str, weight: float) -> Sampled:
    """Of sorted probabilities, of which a sampler keeps the largest, of counts of tokens by expert, or of sequences."""

    def draw(chance: Random) -> Benchmark:
        size, count, kind = model(chance), tokens(chance), dtype(chance)
        dim = -1
        match chance.choice(("probabilities", "probabilities", "experts", "sequences")):
            case "probabilities":
                shape, kind = (chance.choice(SEQUENCES), size.vocabulary), chance.choice((kind, "float32"))
            case "experts":
                shape, kind, dim = (count, chance.choice((8, 32, 60, 64, 128, 256))), "float32", 0
            case _:
                shape = (chance.choice((1, 2, 8)), count, chance.choice((16, 80, 300, 512, 1024)))
                dim = 1
        input = tensor(shape, kind)
        return Benchmark(Case(op=op, args=(input, dim)), 2 * moved(input), math.prod(shape))

    return Sampled("rows", weight, draw)


def norm(op: str, weight: float, names: Sequence[str], flops: int) -> Sampled:
    """Of hidden states, or of the heads of queries and keys."""

    def draw(chance: Random) -> Benchmark:
        size, count, kind = model(chance), tokens(chance), dtype(chance)
        match chance.choice(("hidden", "hidden", "sequences", "heads")):
            case "hidden":
                input = tensor((count, size.hidden), kind)
            case "sequences":
                batch = chance.choice((2, 4, 8))
                input = tensor((batch, max(count // batch, 1), size.hidden), kind)
            case _:
                layout = Layout(padding=(0, 2 * size.kv_heads, 0))
                input = tensor((count, size.heads, size.head_dim), kind, layout)
        columns = input.shape[-1]
        kwargs: dict[str, Argument] = {name: tensor((columns,), kind) for name in names}
        case = Case(op=op, args=(input, (columns,)), kwargs=kwargs)
        parameters = len(names) * moved(tensor((columns,), kind))
        return Benchmark(case, 2 * moved(input) + parameters, flops * math.prod(input.shape))

    return Sampled("rows", weight, draw)


# --- products ----------------------------------------------------------------------------------------------------


def _product(op: str, result: Shape, terms: int, *args: TensorSpec) -> Benchmark:
    output = tensor(result, args[0].dtype)
    return Benchmark(Case(op=op, args=args), moved(*args, output), 2 * math.prod(result) * terms)


def linear(chance: Random) -> Shape:
    """Inner and outer size of a linear layer."""
    size = model(chance)
    attention = size.heads * size.head_dim
    fused = (size.heads + 2 * size.kv_heads) * size.head_dim
    return chance.choice(
        (
            (size.hidden, size.intermediate),
            (size.hidden, 2 * size.intermediate),
            (size.intermediate, size.hidden),
            (size.hidden, fused),
            (attention, size.hidden),
        )
    )


def _matrix(chance: Random, rows: int, columns: int, dtype: str) -> TensorSpec:
    """Weights are mostly kept with the inner dim last, and so are transposed."""
    turned = chance.choice((True, True, False))
    return tensor((rows, columns), dtype, Layout(order=(1, 0)) if turned else CONTIGUOUS)


def mm(op: str, weight: float) -> Sampled:
    """A linear layer, the logits of a few tokens, the gradient of a weight, or a product of any sizes."""

    def draw(chance: Random) -> Benchmark:
        kind, count = dtype(chance), tokens(chance)
        match chance.choice(("linear", "linear", "linear", "logits", "gradient", "any")):
            case "linear":
                inner, outer = linear(chance)
            case "logits":
                size = model(chance)
                count, inner, outer = chance.choice(SEQUENCES), size.hidden, size.vocabulary
            case "gradient":
                rows, outer = linear(chance)
                input = tensor((rows, count), kind, Layout(order=(1, 0)))
                return _product(op, (rows, outer), count, input, tensor((count, outer), kind))
            case _:
                inner, outer = (chance.choice((500, 1000, 3000, 5003, 8 * chance.randint(4, 700))) for _ in range(2))
        input = tensor((count, inner), kind)
        return _product(op, (count, outer), inner, input, _matrix(chance, inner, outer, kind))

    return Sampled("products", weight, draw)


def addmm(op: str, weight: float) -> Sampled:
    """A linear layer with a bias."""

    def draw(chance: Random) -> Benchmark:
        kind, count = dtype(chance), tokens(chance)
        inner, outer = linear(chance)
        bias, input = tensor((outer,), kind), tensor((count, inner), kind)
        return _product(op, (count, outer), inner, bias, input, _matrix(chance, inner, outer, kind))

    return Sampled("products", weight, draw)


def bmm(op: str, weight: float) -> Sampled:
    """Scores of attention, their product with values, or a linear layer of each expert."""

    def draw(chance: Random) -> Benchmark:
        size, kind = model(chance), dtype(chance)
        batch = size.heads * chance.choice((1, 2, 4))
        queries, keys = chance.choice((64, 197, 500, 777, 1024, 2048)), chance.choice((77, 197, 500, 1024, 2048))
        match chance.choice(("scores", "values", "experts")):
            case "scores":
                key = tensor((batch, size.head_dim, keys), kind, Layout(order=(0, 2, 1)))
                query = tensor((batch, queries, size.head_dim), kind)
                return _product(op, (batch, queries, keys), size.head_dim, query, key)
            case "values":
                scores, value = tensor((batch, queries, keys), kind), tensor((batch, keys, size.head_dim), kind)
                return _product(op, (batch, queries, size.head_dim), keys, scores, value)
            case _:
                experts, count = chance.choice((4, 8, 16)), chance.choice((1, 4, 16, 64, 128, 333, 512))
                inner, outer = linear(chance)
                input, weights = tensor((experts, count, inner), kind), tensor((experts, inner, outer), kind)
                return _product(op, (experts, count, outer), inner, input, weights)

    return Sampled("products", weight, draw)


def matmul(op: str, weight: float) -> Sampled:
    """A linear layer of sequences."""

    def draw(chance: Random) -> Benchmark:
        kind, batch = dtype(chance), chance.choice((1, 2, 4, 8))
        count = max(tokens(chance) // batch, 1)
        inner, outer = linear(chance)
        input = tensor((batch, count, inner), kind)
        return _product(op, (batch, count, outer), inner, input, _matrix(chance, inner, outer, kind))

    return Sampled("products", weight, draw)


# --- attention and positions -------------------------------------------------------------------------------------


def attention(op: str, weight: float) -> Sampled:
    """Prompts, causal or with a mask, images, latents that attend to a text, and steps of decoding."""

    def draw(chance: Random) -> Benchmark:
        size, kind, batch = model(chance), dtype(chance), chance.choice((1, 2, 4, 8, 16))
        heads, kv_heads = size.heads, size.kv_heads
        kwargs: dict[str, Argument] = {}
        masks = ()
        match chance.choice(("prompt", "prompt", "prompt", "image", "cross", "padded", "biased", "decode", "decode")):
            case "prompt":
                queries = keys = chance.choice((*PREFILL, chance.randint(9, 6000)))
                kwargs["is_causal"] = True
            case "image":
                queries = keys = chance.choice((197, 256, 257, 577, 729, 1024, 1500, 4096, 4608))
                kv_heads = heads
            case "cross":
                queries, keys, kv_heads = chance.choice((256, 1024, 4096)), chance.choice((77, 154, 256, 512)), heads
            case "padded":
                queries = keys = chance.choice((128, 384, 512, 777, 1024, 2048))
                masks = (tensor((batch, 1, 1, keys), "bool", values="masked"),)
            case "biased":
                queries = keys = chance.choice((128, 384, 512, 777, 1024, 2048))
                masks = (tensor((1, chance.choice((1, heads)), queries, keys), kind),)
            case _:
                queries, keys = chance.choice((1, 1, 1, 4, 8)), chance.choice((*PREFILL, chance.randint(9, 20000)))
        if masks:
            kwargs["attn_mask"] = masks[0]
        if heads != kv_heads:
            kwargs["enable_gqa"] = True
        # Projections give (B, L, H, D), of which heads are seen first.
        layout = chance.choice((Layout(order=(0, 2, 1, 3)), Layout(order=(0, 2, 1, 3)), CONTIGUOUS))
        query = tensor((batch, heads, queries, size.head_dim), kind, layout)
        key, value = (tensor((batch, kv_heads, keys, size.head_dim), kind, layout) for _ in range(2))
        flops = 4 * batch * heads * queries * keys * size.head_dim // (2 if "is_causal" in kwargs else 1)
        case = Case(op=op, args=(query, key, value), kwargs=kwargs)
        return Benchmark(case, moved(query, query, key, value, *masks), flops)

    return Sampled("attention", weight, draw)


def rotary(op: str, weight: float) -> Sampled:
    """Queries of sequences; tables of float32."""

    def draw(chance: Random) -> Benchmark:
        size, kind, batch = model(chance), dtype(chance), chance.choice((1, 2, 4, 16))
        count = max(tokens(chance) // batch, 1)
        table = tensor((count, size.head_dim // 2), "float32")
        layout = chance.choice((CONTIGUOUS, Layout(padding=(0, 0, 2 * size.kv_heads, 0))))
        input = tensor((batch, count, size.heads, size.head_dim), kind, layout)
        args = (input, table, table, chance.choice((True, False)))
        return Benchmark(Case(op=op, args=args), 2 * moved(input) + moved(table, table), 3 * math.prod(input.shape))

    return Sampled("elementwise", weight, draw)
