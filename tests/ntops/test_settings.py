"""Settings: with max_num_configs only what is right for a call is measured, and nothing is written twice."""

import itertools

import pytest
import torch
from triton.runtime.errors import OutOfResources
from tuning import H200

import ntops.torch
from ntops.host import attention_configs, product_configs, rows
from ntops.launch import autotuning, configuration, kernel_sources, recorder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CALLS = {
    "softmax": lambda library, x: library.softmax(x, -1),
    "softmax of columns": lambda library, x: library.softmax(x, 0),
    "rms_norm": lambda library, x: library.rms_norm(x, x.shape[-1:], x[0], 1e-5),
    "layer_norm": lambda library, x: library.layer_norm(x, x.shape[-1:], x[0], x[1]),
}
ATTENTION = (torch.bfloat16, False, True, 0, True)


@pytest.fixture
def set_default():
    """Sets defaults, until the test is over."""
    yield lambda **values: [getattr(ntops.torch, f"set_default_{name}")(value) for name, value in values.items()]

    for name in ("num_warps", "num_stages", "max_num_configs"):
        getattr(ntops.torch, f"set_default_{name}")(None)


@pytest.fixture
def measured(monkeypatch):
    """Configurations are measured, also where kernels are interpreted: a list of the candidates of each measurement."""
    found = []
    measure = autotuning._measured
    monkeypatch.setattr(autotuning, "_measured", lambda *args: (found.append(args[0]), measure(*args))[1])
    monkeypatch.setattr(autotuning, "_known", {})
    monkeypatch.setattr(autotuning, "INTERPRETED", False)
    return found


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


# --- what is measured ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2, 5])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_measured_is_right_for_the_row(call, limit, measured, set_default):
    set_default(max_num_configs=limit)
    x = random(37, 515)
    torch.testing.assert_close(CALLS[call](ntops.torch, x), CALLS[call](torch.nn.functional, x))
    (candidates,) = measured
    columns = 37 if call == "softmax of columns" else 515
    tensors = {"rms_norm": 3, "layer_norm": 4}.get(call, 2)
    problem = rows.Problem(columns, torch.float32, torch.float32, tensors)
    assert len(candidates) == len({*candidates}) == limit
    assert all(problem.allows(options) for options in candidates)
    CALLS[call](ntops.torch, x)
    assert len(measured) == 1, "once for each kind of call"


@pytest.mark.parametrize("number", [1, 6, 11, 15])
@pytest.mark.parametrize("columns", [1, 515])
@pytest.mark.parametrize("call", CALLS)
def test_each_candidate_of_a_row_is_right(call, columns, number, set_default):
    set_default(max_num_configs=16)
    x = random(5, columns)

    with autotuning.assumed(number):
        torch.testing.assert_close(CALLS[call](ntops.torch, x), CALLS[call](torch.nn.functional, x))


@pytest.mark.parametrize("number", [1, 6, 11, 15])
def test_each_candidate_of_products_attention_and_rotation_is_right(number, set_default):
    set_default(max_num_configs=16)
    a, b, c = random(37, 515), random(515, 43, seed=1), random(37, 43, seed=2)
    query, key = random(1, 4, 9, 40), random(1, 2, 70, 40, seed=1)
    heads, angles = random(2, 5, 3, 24), random(5, 12, seed=1)
    gqa = {"is_causal": True, "enable_gqa": True}

    with autotuning.assumed(number):
        torch.testing.assert_close(ntops.torch.mm(a, b), a @ b, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ntops.torch.addmm(c, a, b), c + a @ b, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ntops.torch.bmm(a[None], b[None]), (a @ b)[None], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            ntops.torch.scaled_dot_product_attention(query, key, key, **gqa),
            torch.nn.functional.scaled_dot_product_attention(query, key, key, **gqa),
        )
        rotated = ntops.torch.rotary_position_embedding(heads, angles.sin(), angles.cos())
        torch.testing.assert_close(ntops.torch.add(heads.mT, heads.mT), 2 * heads.mT)

    first, second = heads[..., ::2], heads[..., 1::2]
    sin, cos = angles.sin()[:, None], angles.cos()[:, None]
    expected = torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)
    torch.testing.assert_close(rotated, expected)


def test_no_kernel_is_made_without_its_blocks(monkeypatch, measured, set_default):
    made = {}
    monkeypatch.setattr(kernel_sources, "_kernels", made)
    set_default(max_num_configs=3)
    x = random(4, 70)

    for call in CALLS.values():
        call(ntops.torch, x)

    ntops.torch.rotary_position_embedding(random(2, 5, 3, 24), random(5, 12), random(5, 12))
    ntops.torch.fused_rmsnorm_rope(random(2, 5, 72), random(72), random(5, 12), random(5, 12), head_dim=24)
    assert len(made) > 6
    assert all(blocks for _, _, blocks, *_ in made)


SIZES = (1, 7, 64, 515, 4096, 20000)


def test_candidates_are_allowed_whatever_the_sizes():
    """Also after what was measured for one size is had for another: the sizes are part of what a choice is kept by."""
    problems = [
        rows.Problem(columns, dtype, torch.float32, tensors)
        for columns, dtype, tensors in itertools.product(SIZES, (torch.float16, torch.float32), (2, 3, 4))
    ]
    problems += [
        product_configs.Problem(*sizes, dtype, False)
        for sizes in itertools.product(SIZES, repeat=3)
        for dtype in (torch.float16,)
    ]
    problems += [attention_configs.Problem(*sizes, 64, 64, *ATTENTION) for sizes in itertools.product(SIZES, repeat=3)]

    for problem in problems:
        assert all(problem.allows(options) for options in problem.candidates(H200)), problem


# --- how it is measured --------------------------------------------------------------------------------------------


def _memory(function, x):
    """What a call does to memory that it is given, and to torch's generator."""
    torch.manual_seed(3)
    given = x.clone()
    result = function(given)
    return given, result, torch.randn(1, device=DEVICE)


WRITING = {
    "relu": lambda x: ntops.torch.relu(x[:, 3:], inplace=True),
    "add": lambda x: ntops.torch.add(x.mT, x[:1].expand(70, 70).mT, out=x.mT),
    "dropout": lambda x: ntops.torch.dropout(x[:, 3:], 0.5, inplace=True),
    "mm": lambda x: ntops.torch.mm(x, x, out=x),
    "addmm": lambda x: ntops.torch.addmm(x, x, x, out=x),
    "rotary": lambda x: ntops.torch.rotary_position_embedding(
        x.view(1, 70, 7, 10), *random(2, 70, 5), interleaved=False, inplace=True
    ),
    "cache": lambda x: _with_cache(x[:, :64].to(torch.bfloat16)[None, None]),
}


def _with_cache(keys):
    """Attention and its caches, one after the other."""
    values = keys.clone()
    caches = {"present_key": keys, "present_value": values, "present_key_slot": 3}
    rows = random(3, 1, 1, 64, 64, dtype=torch.bfloat16)
    result = ntops.torch.scaled_dot_product_attention(*rows, **caches)
    return torch.cat([one.flatten() for one in (result, keys, values)])


@pytest.mark.parametrize("call", WRITING)
def test_measuring_writes_nothing_that_a_caller_sees(call, measured, set_default):
    x = random(70, 70)
    expected = _memory(WRITING[call], x)
    set_default(max_num_configs=3)
    found = _memory(WRITING[call], x)
    again = _memory(WRITING[call], x)
    assert len(measured) == 1

    for one, other, third in zip(expected, found, again, strict=True):
        torch.testing.assert_close(one, other)
        assert torch.equal(other, third)


def test_it_is_measured_anew_under_other_settings_only(measured, set_default):
    x = random(3, 515)

    for settings in ({"max_num_configs": 2}, {"max_num_configs": 3}, {"num_warps": 8}, {"num_stages": 2}):
        set_default(**settings)
        ntops.torch.softmax(x, -1)
        ntops.torch.softmax(x[:2], -1)

    assert [len(candidates) for candidates in measured] == [2, 3, 3, 3]
    assert {options.num_warps for options in measured[2]} == {8}

    with configuration.fixed(1):
        ntops.torch.softmax(x, -1)

    set_default(max_num_configs=1)
    ntops.torch.softmax(x, -1)
    assert len(measured) == 4


def test_what_does_not_compile_is_no_candidate(measured, set_default):
    output = torch.zeros(3, device=DEVICE)
    seen = []

    def launch(scratch, chosen):
        assert scratch.data_ptr() != output.data_ptr()
        seen.append(chosen.num_warps)

        if chosen.num_warps != 8:
            raise OutOfResources(2, 1, "shared memory")

    candidates = [kernel_sources.Config((), warps) for warps in (1, 2, 4, 8)]
    set_default(max_num_configs=16)
    chosen = autotuning.fastest("a kernel", candidates[0], lambda: candidates, launch, output)
    assert (chosen.num_warps, seen) == (8, [1, 2, 4, 8])
    # Where none does, the library's choice says so.
    chosen = autotuning.fastest("another", candidates[0], lambda: candidates[:2], launch, output)
    assert chosen.num_warps == 1


@pytest.mark.parametrize(("start", "strides"), [(0, (5, 1)), (3, (5, 1)), (1, (1, 7))])
def test_scratch_memory_lies_as_the_output_does(start, strides):
    output = torch.zeros(64, device=DEVICE).as_strided((4, 5), strides, start)
    scratch = autotuning._like(output)
    assert (scratch.shape, scratch.stride()) == (output.shape, output.stride())
    assert scratch.data_ptr() % 16 == output.data_ptr() % 16
    assert scratch.untyped_storage().data_ptr() != output.untyped_storage().data_ptr()


def test_what_is_measured_is_no_part_of_a_recorded_call(monkeypatch):
    recording = recorder._Recording()
    monkeypatch.setattr(recorder._local, "recording", recording)

    with recorder.unrecorded():
        recorder.empty((3,), (1,), torch.float32, DEVICE)

    assert recording.allocations == []
    recorder.empty((3,), (1,), torch.float32, DEVICE)
    assert len(recording.allocations) == 1


# --- warps and stages ----------------------------------------------------------------------------------------------


class _Kernel:
    """A kernel with shared memory for so many stages."""

    def __init__(self, stages):
        self.stages = stages
        self.launched = []

    def __getitem__(self, grid):
        def launch(*args, **options):
            if options.get("num_stages", 1) > self.stages:
                raise OutOfResources(options["num_stages"], self.stages, "shared memory")

            self.launched.append(options)

        return launch


def test_stages_that_do_not_fit_are_left_out():
    kernel = _Kernel(stages=2)
    recorder.launch(kernel, (1,), {"num_warps": 4, "num_stages": 5})
    (launched,) = kernel.launched
    assert launched.items() >= {"num_warps": 4, "num_stages": 2}.items()

    for options in ({"num_stages": 5}, {}):
        kernel = _Kernel(stages=0)

        with pytest.raises(OutOfResources, match="shared memory"):
            recorder.launch(kernel, (1,), {"num_stages": 1} | options)

        assert kernel.launched == []


@pytest.mark.parametrize(("name", "value"), [*itertools.product(["num_warps"], (1, 16)), ("num_stages", 5)])
def test_rows_of_heads_are_rotated_under_every_setting(name, value, set_default):
    """By a kernel that loads rows ahead, and has programs by its warps."""
    x, weight, angles = random(2, 5, 2048), random(2048), random(5, 32)
    arguments = x, weight, angles.cos(), angles.sin()
    expected = ntops.torch.fused_rmsnorm_rope(*arguments, head_dim=64)
    set_default(**{name: value})
    torch.testing.assert_close(ntops.torch.fused_rmsnorm_rope(*arguments, head_dim=64), expected)
