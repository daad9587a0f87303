"""Test decoding with a KV cache step by step, beyond what single calls show: collected where this op is judged.

After each step attention through the cache has to be, within the bound, attention over the whole history at once by
the oracle, and the cache has to hold that history bit for bit, and nothing else in it changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from conformance import guards
from conformance import spec as specs
from conformance.compare import compare
from conformance.session import Run
from conformance.spec import Call, Expected
from strategies import tensors as spec_tensors
from strategies.specs import Layout, TensorSpec

OP = "scaled_dot_product_attention"
CAPACITY = 40
STEPS = {"cpu": 10, "cuda": 30}
"""The steps of a run. On the CPU, where kernels are interpreted, there is a run for ten cases of the profile, on a GPU
two for each."""
LAYOUTS = (Layout(), Layout(order=(0, 2, 1, 3)), Layout(padding=(0, 0, 3, 2), offset=1), Layout(order=(2, 0, 1, 3)))
FORMS = ("views", "position", "positions")


class Form(NamedTuple):
    """The sizes of a model, and the layout of its cache."""

    dtype: str
    batch: int
    heads: int
    ratio: int
    dim: int
    value_dim: int
    layout: Layout


class Decoding(RuleBasedStateMachine):
    """Sequences in one cache, of lengths of their own: tokens and chunks are appended, sequences cut and reordered."""

    run: Run
    """The options of judging; a subclass has them."""

    @initialize(
        dtype=st.integers(0, 3),
        batch=st.integers(1, 3),
        heads=st.integers(1, 2),
        ratio=st.sampled_from((1, 2, 3)),
        dim=st.sampled_from((1, 8, 5, 16, 33)),
        value_dim=st.sampled_from((None, 4, 17)),
        layout=st.sampled_from(LAYOUTS),
    )
    def begin(
        self, dtype: int, batch: int, heads: int, ratio: int, dim: int, value_dim: int | None, layout: Layout
    ) -> None:
        dtypes = [name for name in specs.registry()[OP].dtypes if name in self.run.dtypes]
        self.form = Form(dtypes[dtype % len(dtypes)], batch, heads, ratio, dim, value_dim or dim, layout)
        self.seed = 0
        self.lengths = [0] * batch
        # Before anything is written the cache holds numbers in its rows, and NaN outside of them.
        sizes = (self.form.dim, self.form.value_dim)
        self.caches = [self._made((batch, heads, CAPACITY, size), layout, self.run.device) for size in sizes]
        self.histories = [cache.cpu().clone() for cache in self.caches]

    @precondition(lambda self: max(self.lengths) < CAPACITY)
    @rule(form=st.sampled_from(FORMS), causal=st.booleans())
    def token(self, form: str, causal: bool) -> None:
        """Append one token to each sequence."""
        self._append(1, form, causal)

    @precondition(lambda self: max(self.lengths) < CAPACITY)
    @rule(count=st.integers(2, 20), form=st.sampled_from(FORMS), causal=st.booleans())
    def chunk(self, count: int, form: str, causal: bool) -> None:
        """Append several tokens to each sequence: a prompt, or a part of one."""
        self._append(min(count, CAPACITY - max(self.lengths)), form, causal)

    @precondition(lambda self: max(self.lengths) > 0)
    @rule(sequence=st.integers(0, 2), kept=st.integers(0, CAPACITY))
    def truncate(self, sequence: int, kept: int) -> None:
        """Cut the last tokens of a sequence, or all: its rows stay in the cache, and must not be seen again."""
        sequence %= self.form.batch
        self.lengths[sequence] = min(self.lengths[sequence], kept)

    @precondition(lambda self: self.form.batch > 1)
    @rule(first=st.integers(0, 2), second=st.integers(0, 2))
    def swap(self, first: int, second: int) -> None:
        """Swap two sequences, as when a batch is put together anew."""
        order = list(range(self.form.batch))
        first, second = first % len(order), second % len(order)
        order[first], order[second] = order[second], order[first]
        for cache, history in zip(self.caches, self.histories, strict=True):
            cache.copy_(cache[order])
            history.copy_(history[order])
        self.lengths = [self.lengths[number] for number in order]

    def _append(self, count: int, form: str, causal: bool) -> None:
        batch, heads, ratio = self.form.batch, self.form.heads, self.form.ratio
        if form != "positions" and len(set(self.lengths)) > 1:
            form = "positions"
        query = self._made((batch, heads * ratio, count, self.form.dim))
        new = [self._made((batch, heads, count, size)) for size in (self.form.dim, self.form.value_dim)]
        for history, rows in zip(self.histories, new, strict=True):
            for sequence, length in enumerate(self.lengths):
                history[sequence, :, length : length + count] = rows[sequence]
        found = self._call(form, causal, query, *new).cpu()
        self.lengths = [length + count for length in self.lengths]
        self._compare(found, query, causal)

    def _call(self, form: str, causal: bool, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        from torch.nn.attention.bias import CausalVariant

        device, first, count = self.run.device, self.lengths[0], key.shape[2]
        query, key, value = (x.to(device) for x in (query, key, value))
        kwargs: dict[str, Any] = {"enable_gqa": self.form.ratio > 1, "is_causal": causal}
        if form == "views":
            if causal:
                kwargs["causal_variant"] = CausalVariant.LOWER_RIGHT
            slots = [cache[:, :, first : first + count] for cache in self.caches]
            kwargs |= {"present_key": key, "present_value": value}
            key, value = (cache[:, :, : first + count] for cache in self.caches)
        else:
            slots = [first if form == "position" else torch.tensor(self.lengths, device=device), None]
            kwargs |= dict(zip(("present_key", "present_value"), self.caches, strict=True))
        kwargs |= {"present_key_slot": slots[0], "present_value_slot": slots[1]}
        function = self.run.implementation.function(OP)
        assert function is not None
        return function(query, key, value, **kwargs)

    def _compare(self, found: torch.Tensor, query: torch.Tensor, causal: bool) -> None:
        from torch.nn.attention.bias import CausalVariant

        for name, cache, history in zip(("keys", "values"), self.caches, self.histories, strict=True):
            assert torch.equal(guards.bits(cache), guards.bits(history)), f"the cache of {name} is not the history"
        for sequence, length in enumerate(self.lengths):
            part = slice(sequence, sequence + 1)
            args = (query[part], *(history[part, :, :length] for history in self.histories))
            kwargs = {"enable_gqa": True, "is_causal": causal, "causal_variant": CausalVariant.LOWER_RIGHT}
            expected = specs.registry()[OP].expected(Call(args, kwargs, None))
            assert isinstance(expected, Expected)
            comparison = compare(found[part], expected)
            assert comparison.passed, (
                f"sequence {sequence} of length {length}: {comparison.failed} of {comparison.judged} elements are "
                f"wrong; the worst is {comparison.index}: {comparison.ours}, should be {comparison.oracle}"
            )

    def _made(
        self, shape: tuple[int, ...], layout: Layout | None = None, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        self.seed += 1
        spec = TensorSpec(shape, self.form.dtype, "normal", self.seed, layout or Layout())
        return spec_tensors.materialize(spec, 0, device)


@pytest.fixture
def attention(run: Run) -> Callable[..., torch.Tensor]:
    """Return the function that is judged."""
    function = run.implementation.function(OP)
    if function is None:
        pytest.skip(f"not provided by {run.implementation.name}: {OP}")
    return function


@pytest.mark.parametrize("slots", [(1, 5), (-1, 2), (0, 2**40)])
def test_positions_past_the_capacity(run: Run, attention: Callable[..., torch.Tensor], slots: tuple[int, int]) -> None:
    """Test that the CPU refuses positions of a tensor past the capacity before anything is written; a GPU, where asking
    would stall the stream, may take them, and then writes nothing that is out of range."""
    capacity = 6
    buffers = [torch.full((4, 2, capacity, 8), 7.0, device=run.device) for _ in range(2)]
    caches = [buffer[1:3] for buffer in buffers]
    new = torch.ones(2, 2, 2, 8, device=run.device)
    try:
        attention(
            *(new, new, new),
            present_key=caches[0],
            present_value=caches[1],
            present_key_slot=torch.tensor(slots, device=run.device),
        )
    except RuntimeError:
        assert all((buffer == 7).all() for buffer in buffers)
        return
    assert run.device.type == "cuda", "positions past the capacity were taken"
    for buffer in buffers:
        assert (buffer[[0, 3]] == 7).all(), "a row of another cache was written"
        for cache, slot in zip(buffer[1:3], slots, strict=True):
            kept = [row for row in range(capacity) if not slot <= row < slot + 2]
            assert (cache[:, kept] == 7).all(), "a row beside the new ones was written"


@pytest.mark.usefixtures("attention")
def test_decoding(run: Run) -> None:
    """Run a state machine: the steps that a failure needs are in its message."""
    machine = hypothesis.seed(run.seed)(type("Decoding", (Decoding,), {"run": run}))
    kind = run.device.type
    examples = run.settings.max_examples
    settings = hypothesis.settings(
        run.settings,
        max_examples=2 * examples if kind == "cuda" else -(-examples // 10),
        stateful_step_count=STEPS[kind],
        database=None,
        derandomize=False,
        deadline=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=settings)
