"""Sizes of published models, and strategies that draw the sizes of calls from them.

Kernels have tables and paths of their own for such sizes, which lie beside no power of two and no edge of a block.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from hypothesis import strategies as st

from strategies import layouts
from strategies.shapes import Shape, sizes
from strategies.specs import CONTIGUOUS, Layout


@dataclasses.dataclass(frozen=True)
class Model:
    """Sizes of a published model, or of its part on one of several GPUs."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


MODELS = (
    Model(768, 3072, 12, 12, 64, 50257),  # GPT-2
    Model(1024, 4096, 16, 16, 64, 30522),  # BERT large
    Model(1152, 4304, 16, 16, 72, 32000),  # SigLIP so400m
    Model(1280, 5120, 20, 20, 64, 51866),  # Whisper large v3
    Model(1280, 5120, 8, 8, 160, 49408),  # Stable Diffusion 1.5
    Model(896, 4864, 14, 2, 64, 151936),  # Qwen2.5 0.5B
    Model(2048, 8192, 32, 8, 64, 128256),  # Llama 3.2 1B
    Model(2304, 9216, 8, 4, 256, 256000),  # Gemma 2 2B
    Model(2560, 10240, 32, 32, 80, 51200),  # Phi-2
    Model(2880, 2880, 64, 8, 64, 201088),  # gpt-oss 20B
    Model(3072, 8192, 32, 32, 96, 32064),  # Phi-3 mini
    Model(3584, 18944, 28, 4, 128, 152064),  # Qwen2.5 7B
    Model(4096, 11008, 32, 32, 128, 32000),  # Llama 2 7B
    Model(4096, 14336, 32, 8, 128, 128256),  # Llama 3 8B
    Model(4544, 18176, 71, 1, 64, 65024),  # Falcon 7B
    Model(5120, 13824, 40, 40, 128, 32000),  # Llama 2 13B
    Model(6144, 24576, 64, 64, 96, 50432),  # GPT-NeoX 20B
    Model(7168, 18432, 128, 128, 192, 129280),  # DeepSeek V3, keys and queries
    Model(7168, 28672, 64, 64, 112, 50432),  # MPT 30B
    Model(8192, 28672, 64, 8, 128, 128256),  # Llama 3 70B
)

HIDDEN = tuple(sorted({model.hidden for model in MODELS}))
INTERMEDIATE = tuple(sorted({model.intermediate for model in MODELS}))
VOCABULARIES = tuple(sorted({model.vocabulary for model in MODELS}))
WIDTHS = tuple(sorted({*HIDDEN, *INTERMEDIATE}))
"""Lengths of the rows that activations have."""
HEADS = tuple(sorted({(model.kv_heads, model.heads // model.kv_heads, model.head_dim) for model in MODELS}))
"""Heads of keys, query heads for each of them, and the elements of a head."""
HEAD_DIMS = tuple(sorted({model.head_dim for model in MODELS}))
EXPERTS = (8, 16, 32, 60, 64, 72, 128, 160, 256)
RANKS = (8, 16, 32, 64)
"""Ranks of low-rank adapters."""
SHORT = tuple(sorted({*RANKS, *EXPERTS, *HEAD_DIMS}))
"""Lengths of short rows, of which there are many: adapters, experts, and heads."""
KEYS = (77, 154, 197, 257, 333, 577, 729)
"""Keys of prompts and images, which fill no block."""
LINEAR = tuple(
    sorted(
        {
            pair
            for model in MODELS
            for pair in (
                (model.hidden, model.intermediate),
                (model.intermediate, model.hidden),
                (model.hidden, (model.heads + 2 * model.kv_heads) * model.head_dim),
                (model.heads * model.head_dim, model.hidden),
            )
        }
    )
)
"""Inner and outer sizes of linear layers."""

PRODUCTS = ("down", "up", "router", "scores")

SCENES = ("cut", "turned", "heads", "part", "repeated")
"""How activations lie in memory: (B, T, C) with a token cut off; channels before tokens; heads before tokens, (B, H, T,
D), of a projection; a part of one, which others lie beside; and heads that several groups share."""
BESIDE = ("alike", "contiguous", "other", "row", "column", "batch", "mask", "channels")
"""What an operator of two tensors has beside activations: a tensor that lies alike, one that is contiguous, one that
lies in another way, or one that broadcasts: (C,), (B, T, 1), (B, 1, C), (T, C), (1, T, 1)."""
_OFTEN_BESIDE = {"turned": "row", "repeated": "other", "heads": "contiguous"}
"""Half the time, a bias beside what was turned, rotated heads beside those that are shared, and heads that were copied
beside those of a projection."""

_CAP = st.integers(1, 1 << 23)
_FLAG, _BATCH, _HEADS_OF_FEW = st.booleans(), st.sampled_from((2, 3, 1)), st.integers(2, 5)
_TOKENS_OF_FEW, _WIDTHS = sizes(2, 40), sizes(2, 96)
_TOKENS = st.sampled_from((1, 2, 3, 4, 8, 16, 17, 33))


@st.composite
def widths(draw: st.DrawFn, sizes: tuple[int, ...] = WIDTHS, most: int = 1 << 23) -> int:
    """One of ``sizes`` that is no more than ``most``, hardly ever less; shrinks to the smallest that fails."""
    size = draw(st.sampled_from([size for size in sizes if size <= most] or [most]))
    # A cap is what shrinking lowers, beyond the sizes of models.
    return min(size, draw(_CAP))


@st.composite
def products(draw: st.DrawFn, work: int, kinds: Sequence[str] = PRODUCTS, most: int = 1 << 16) -> tuple[int, int, int]:
    """(M, K, N) of one half of a low-rank adapter, of a router, or of a head's scores; M * K * N within ``work``, and
    each matrix within ``most`` elements."""
    weights = min(work, most)
    match draw(st.sampled_from(kinds)):
        case "down":
            inner = draw(widths(WIDTHS, weights // RANKS[0]))
            outer = draw(widths(RANKS, weights // inner))
        case "up":
            inner = draw(widths(RANKS))
            outer = draw(widths(WIDTHS, weights // inner))
        case "router":
            inner = draw(widths(HIDDEN, weights // EXPERTS[0]))
            outer = draw(widths(EXPERTS, weights // inner))
        case _:
            inner = draw(widths(HEAD_DIMS))
            outer = draw(widths(KEYS, weights // inner))
    tokens = min(work // (inner * outer), most // max(inner, outer))
    return min(draw(_TOKENS), max(tokens, 1)), inner, outer


@st.composite
def linear(draw: st.DrawFn, weights: int) -> tuple[int, int]:
    """(K, N) of a linear layer, or of its part on one of so many GPUs that it has ``weights`` elements at most."""
    inner, outer = draw(st.sampled_from(LINEAR))
    split = draw(st.booleans())
    while inner * outer > weights:
        inner, outer = (inner // 2, outer) if split else (inner, outer // 2)
    return min(inner, draw(_CAP)), min(outer, draw(_CAP))


@st.composite
def heads(draw: st.DrawFn) -> tuple[int, int, int]:
    """Heads of keys, query heads for each of them, and the elements of a head: of a model, or of its part on one of two
    or four GPUs."""
    count, ratio, dim = draw(st.sampled_from(HEADS))
    shards = draw(st.sampled_from((1, 1, 2, 4)))
    return max(count // shards, 1), ratio, dim


@st.composite
def activations(
    draw: st.DrawFn, budget: int, operands: int = 1, *, writable: bool = False
) -> list[tuple[Shape, Layout | None]]:
    """Shapes and layouts of small activations, of which each dim has several elements, but for the batch now and then,
    and of other operands that stand beside them; None: any layout.

    ``writable``: of the activations no two elements lie at one address."""
    scene = draw(st.sampled_from(SCENES[:-1] if writable else SCENES))
    batch, tokens, width = draw(_BATCH), draw(_TOKENS_OF_FEW), draw(_WIDTHS)
    heads = (draw(_HEADS_OF_FEW),) if scene in ("heads", "repeated") else ()
    width = max(min(width, budget // (batch * tokens * math.prod(heads))), 2)
    shape = (batch, *heads, tokens, width)
    layout = _laid(draw, scene, shape)
    found: list[tuple[Shape, Layout | None]] = [(shape, layout)]
    for _ in range(operands - 1):
        what = _OFTEN_BESIDE[scene] if scene in _OFTEN_BESIDE and draw(_FLAG) else draw(st.sampled_from(BESIDE))
        found.append(_beside(draw, what, shape, layout))
    return found


def _laid(draw: st.DrawFn, scene: str, shape: Shape) -> Layout:
    match scene:
        case "cut":
            return layouts.cut(draw, shape)
        case "turned":
            return layouts.turned(shape, 0)
        case "heads":
            return layouts.turned(shape, 1)
        case "part":
            return layouts.part(draw, shape, range(len(shape)))
    return Layout(expanded=(1,))


def _beside(draw: st.DrawFn, what: str, shape: Shape, layout: Layout) -> tuple[Shape, Layout | None]:
    match what:
        case "alike":
            return shape, layout
        case "contiguous":
            return shape, CONTIGUOUS
        case "other":
            return shape, _laid(draw, draw(st.sampled_from(("cut", "turned", "heads", "part"))), shape)
        case "row":
            return shape[-1:], CONTIGUOUS
        case "column":
            return (*shape[:-1], 1), None
        case "batch":
            return (*shape[:-2], 1, shape[-1]), None
        case "channels":
            return (*(1,) * (len(shape) - 2), shape[-2], 1), None
    return shape[-2:], None
