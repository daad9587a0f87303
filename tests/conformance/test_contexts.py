"""Checks of calls in other contexts: what they find, what they leave alone."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from types import SimpleNamespace

import msgspec
import pytest
import torch

import ntops.torch
from conformance import case_files, cases, compiler_faults, context_calls, corpus, deviations, runner
from conformance.cases import Case
from conformance.checks import DEVIATION, FAILED, PASSED, RARE, TURNS, UNCLAIMED, gpu, least_tried
from conformance.implementations import Implementation, load
from conformance.selftest import contexts as planted
from conformance.selftest import correct, defect_registry
from strategies.specs import Layout, TensorSpec

CPU = torch.device("cpu")
BANK = defect_registry.bank()


def spec(*shape, dtype="float32", **more):
    return TensorSpec(shape, dtype, **more)


TURNED = Layout(order=(1, 0))
CASES = {
    "add": Case(op="add", args=(spec(33), spec(5, 33, dtype="bfloat16"))),
    "exp": Case(op="exp", args=(spec(5, 33, layout=TURNED),)),
    "abs": Case(op="abs", args=(spec(5, 33),)),
    "lt": Case(op="lt", args=(spec(5, 33, layout=TURNED), spec(5, 33, layout=TURNED))),
    "silu": Case(op="silu", args=(spec(0, 33),)),
    "relu": Case(op="relu", args=(spec(5, 33, layout=TURNED),)),
    "softmax": Case(op="softmax", args=(spec(5, 33), -1)),
    "layer_norm": Case(op="layer_norm", args=(spec(6, 33), (33,)), kwargs={"weight": spec(33)}),
    "mm": Case(op="mm", args=(spec(5, 9), spec(9, 7))),
    "matmul": Case(op="matmul", args=(spec(5, 9), spec(9))),
    "quantize_fp8": Case(op="quantize_fp8", args=(spec(5, 33),)),
}


def judged(check, case, implementation):
    """The finding of a check."""
    verdict = runner.judge(case, implementation, CPU, [check])
    (finding,) = (one for one in verdict.findings if one.check == check)
    return finding


def claiming(op, check, function):
    return Implementation("tested", SimpleNamespace(**{op: function}), {op: ("deterministic", check)})


@pytest.mark.parametrize("op", [op for op in CASES if op != "quantize_fp8"])
def test_fakes_that_are_right_pass(op):
    own = claiming(op, "fake", planted.with_fake(op, correct.right(op)))
    for implementation in (load("torch"), load("ntops.torch"), own):
        finding = judged("fake", CASES[op], implementation)
        assert finding.status in (PASSED, DEVIATION if implementation.name == "torch" else PASSED), finding.message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("add_fake_shape_of_first", "shape [33], that of the plain call is [5, 33]"),
        ("add_fake_dtype_of_first", None),
        ("exp_fake_contiguous", "strides (33, 1), that of the plain call is (1, 5)"),
        ("exp_fake_new_for_out", "that of the plain call is operand 1 itself"),
        ("silu_fake_flat_where_empty", "shape [0], that of the plain call is [0, 33]"),
        ("relu_fake_new_in_place", "in place: the result is a tensor with memory of its own"),
        ("abs_fake_input_returned", "the result is operand 0 itself; that of the plain call is a tensor with memory"),
        ("mm_fake_out_is_not_resized", "shape [0], that of the plain call is [5, 7]"),
        ("mm_fake_elements_read", "raised DataDependentOutputException"),
        ("layer_norm_fake_memory_asked_for", "raised"),
        ("softmax_fake_on_meta", "device meta"),
        ("matmul_fake_vectors_are_matrices", "shape [5, 1], that of the plain call is [5]"),
    ],
)
def test_wrong_fakes_are_caught(name, message):
    defect = BANK[name]
    case = CASES[defect.op]
    if message is None:
        case, message = Case(op="add", args=(case.args[1], case.args[0])), "dtype torch.bfloat16"
    finding = judged("fake", case, defect.implementation)
    assert finding.status == FAILED
    assert message in finding.message


def test_what_is_not_claimed_is_not_called_with_fakes():
    def exp(input, *, out=None):
        assert type(input) is torch.Tensor
        return torch.exp(input, out=out)

    quiet = Implementation("quiet", SimpleNamespace(exp=exp), {})
    assert judged("fake", CASES["exp"], quiet).status == UNCLAIMED
    assert "fake" not in [finding.check for finding in runner.judge(CASES["exp"], quiet, CPU).findings]
    assert judged("fake", CASES["exp"], claiming("exp", "fake", exp)).status == FAILED


@pytest.mark.parametrize("deviation", deviations.contexts.DEVIATIONS, ids=lambda one: one.name)
def test_torch_really_deviates(deviation):
    torch_itself = load("torch")
    # Of versions that do not have a function nothing can be shown.
    if torch_itself.function(deviation.case.op) is None:
        pytest.skip(f"torch {torch.__version__} has no {deviation.case.op}")
    assert {judged(check, deviation.case, torch_itself).status for check in deviation.checks} == {DEVIATION}


MORE = CASES | {
    "sin": Case(op="sin", args=(spec(5, 33),)),
    "cos": Case(op="cos", args=(spec(5, 33),)),
    "mul": Case(op="mul", args=(spec(5, 33), 1.5)),
    "abs": Case(op="abs", args=(spec(5, 33, dtype="float16"),)),
}


@pytest.mark.parametrize("op", ["add", "silu", "softmax", "matmul"])
def test_calls_that_compile_as_they_are_pass(op):
    for implementation in (load("torch"), load("ntops.torch")):
        finding = judged("compiled", MORE[op], implementation)
        assert (finding.status, finding.message) == (PASSED, "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exp_compiled_reads_an_element", "compiled: raised "),
        ("add_compiled_breaks", "raised Unsupported"),
        ("abs_compiled_in_other_dtype", "dtype torch.float32, that of the plain call is torch.float16"),
        ("mul_compiled_rounds_more", "a call and the same differ at"),
        ("sin_compiled_write_undeclared", "out= of the right size: "),
        ("relu_compiled_new_for_in_place", "in place: the result is a tensor with memory of its own"),
        ("cos_compiled_over_operand", "operand 0 differs at"),
    ],
)
def test_graphs_that_differ_are_caught(name, message):
    defect = BANK[name]
    finding = judged("compiled", MORE[defect.op], defect.implementation)
    assert finding.status == FAILED
    assert message in finding.message


def test_who_claims_no_graphs_gets_none():
    def exp(input, *, out=None):
        assert not torch.compiler.is_compiling()
        return torch.exp(input, out=out)

    quiet = Implementation("quiet", SimpleNamespace(exp=exp), {})
    assert judged("compiled", CASES["exp"], quiet).status == UNCLAIMED
    assert judged("compiled", CASES["exp"], claiming("exp", "compiled", exp)).status == FAILED


def test_graphs_with_an_out_that_no_library_can_give_are_not_asked_for():
    case = Case(op="add", args=(spec(dtype="int64"), 1), kwargs={"out": spec(0, dtype="int64")})
    assert judged("compiled", case, load("ntops.torch")).status == PASSED


def test_an_element_that_torch_needs_too_may_be_missing():
    case = Case(op="clamp", args=(spec(9, dtype="int32"), 0, spec()))
    assert judged("fake", case, load("ntops.torch")).status == PASSED
    needless = claiming("exp", "fake", lambda input, *, out=None: torch.exp(input, out=out) + 0 * input.max().item())
    assert "DataDependentOutputException" in judged("fake", CASES["exp"], needless).message


def made_of(check, case, thorough):
    findings = runner.judge(case, load("ntops.torch"), CPU, thorough=thorough).findings
    return check in [finding.check for finding in findings]


WITHOUT_GPU = [check for check in RARE if check not in gpu.CONTEXTS]


@pytest.mark.parametrize(
    ("check", "thorough"), [(check, whole) for check in WITHOUT_GPU for whole in (check in TURNS, True)]
)
def test_one_case_in_so_many_makes_a_rare_check(check, thorough):
    """And one that was saved since it failed it."""

    def made(case):
        return made_of(check, case, thorough)

    turn, other = (
        next(one for seed in range(20000) if bool(cases.seed(one := of_seed(seed)) % RARE[check]) is later)
        for later in (False, True)
    )
    assert made(turn)
    assert not made(other)
    assert made(msgspec.structs.replace(other, note=f"{check} failed for something on cpu"))


@pytest.mark.parametrize("check", [check for check in WITHOUT_GPU if check in TURNS])
def test_a_search_of_few_calls_makes_a_rare_check_once(check):
    """Whatever their seeds are, and calls to which it does not apply do not count."""
    least_tried.anew()
    seeds = [seed for seed in range(200) if cases.seed(of_seed(seed)) % RARE[check]][:8]
    small = [of_seed(seed) for seed in seeds]
    large = Case(op="neg", args=(spec(1 << 16),))
    assert not made_of(check, large, thorough=False)
    found = [made_of(check, case, thorough=False) for case in small]
    assert found == [place % RARE[check] == least_tried.FIRST % RARE[check] for place in range(8)]
    assert any(found)
    assert [made_of(check, case, thorough=False) for case in small] == found
    noted = msgspec.structs.replace(small[0], note=f"{check} failed for something on cpu")
    assert made_of(check, noted, thorough=False)


def of_seed(seed):
    return Case(op="neg", args=(spec(3, seed=seed),))


def saved(identity):
    path = corpus.find(identity, [corpus.SHIPPED])
    return case_files.read(path)


def test_a_sign_that_torchs_compiler_loses_is_its_deviation():
    case = saved("pow-d163f2a2e6")
    finding = judged("compiled", case, load("ntops.torch"))
    assert (finding.status, finding.message) == (DEVIATION, compiler_faults.SIGN)

    def wrong(input, exponent, *, out=None):
        result = torch.pow(input, exponent, out=out)
        return result + 1 if torch.compiler.is_compiling() and out is None else result

    assert judged("compiled", case, claiming("pow", "compiled", wrong)).status == FAILED


@pytest.mark.parametrize("case", ["3c09de64da", "868e4d9f72"])
def test_shared_operands_that_torchs_compiler_fails_of_are_its_deviation(case):
    case = saved(f"scaled_dot_product_attention-{case}")
    finding = judged("compiled", case, load("ntops.torch"))
    assert (finding.status, finding.message) == (DEVIATION, compiler_faults.SHARED)

    def breaks(*args, **kwargs):
        if torch.compiler.is_compiling():
            raise ValueError("of the library")
        return ntops.torch.scaled_dot_product_attention(*args, **kwargs)

    own = claiming("scaled_dot_product_attention", "compiled", breaks)
    assert judged("compiled", case, own).status == FAILED


@pytest.mark.parametrize("op", ["add", "softmax", "layer_norm", "mm", "quantize_fp8"])
def test_calls_of_two_threads_are_those_of_one(op):
    torchs = [load("torch")] if hasattr(torch, op) else []
    for implementation in (*torchs, load("ntops.torch")):
        finding = judged("threads", CASES[op], implementation)
        assert (finding.status, finding.message) == (PASSED, "")


@pytest.mark.parametrize("interval", [1e-6, 1.0])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("add_workspace_shared", "each line, 0 lines ahead of the other one: a call of one thread and of two at once"),
        ("exp_workspace_shared", "each line, 0 lines ahead"),
        ("softmax_workspace_shared", "each line, 0 lines ahead"),
        ("mm_workspace_shared", "each line, 0 lines ahead"),
        ("layer_norm_arguments_shared", "in the first thread, the first stopped at each line, 0 lines ahead"),
        ("matmul_refuses_at_once", "from two threads at once: raised RuntimeError: busy"),
    ],
)
def test_what_threads_share_is_caught_however_often_they_switch(name, message, interval):
    defect, before = BANK[name], sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        findings = [judged("threads", CASES[defect.op], defect.implementation) for _ in range(3)]
    finally:
        sys.setswitchinterval(before)
    assert [finding.status for finding in findings] == [FAILED] * 3
    assert len({finding.message for finding in findings}) == 1
    assert message in findings[0].message


@contextlib.contextmanager
def collecting(threshold):
    """Python's collector runs after so many new objects, and calls what ``gc.callbacks`` has: Hypothesis, say."""
    before, called = gc.get_threshold(), []

    def callback(phase, info):
        called.append(phase)

    gc.collect()
    gc.callbacks.append(callback)
    gc.set_threshold(threshold)
    # It is due soon after, whatever a call leaves.
    new = [[] for _ in range(threshold - threshold // 8)]
    try:
        yield new
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(callback)
    assert called


@pytest.mark.parametrize("threshold", [4, 13, 29])
def test_what_the_collector_calls_are_no_lines_of_a_thread(threshold):
    defect = BANK["layer_norm_arguments_shared"]
    with collecting(threshold):
        findings = [judged("threads", CASES["layer_norm"], defect.implementation) for _ in range(3)]
    assert [finding.status for finding in findings] == [FAILED] * 3


@pytest.mark.parametrize("threshold", [1, 4, 700])
def test_a_mistake_between_two_lines_is_told_with_its_place(threshold):
    """While the second thread makes its whole call, which leaves another state than it found."""
    state = SimpleNamespace(calls=0)

    def exp(input, *, out=None):
        before = state.calls
        result = torch.exp(input, out=out)
        state.calls += 1
        return result if state.calls == before + 1 else result + 1

    own = Implementation("tested", SimpleNamespace(exp=exp), {"exp": ("deterministic",)})
    with collecting(threshold):
        assert "differ at" in judged("threads", CASES["exp"], own).message
        stopped = [turns(cut, exp) for cut in (1, 2, 4)]
    assert [values[0] is not None and places for values, places in stopped] == [
        [f"test_contexts.py:{exp.__code__.co_firstlineno + line}"] for line in (1, 2, 4)
    ]


def turns(cut, function):
    """The values of two threads of which the first stops before its line of this number, and where that is."""
    both = context_calls._Turns(lambda thread, line: thread == 0 and line == cut)
    return both.run([functools.partial(function, torch.ones(3))] * 2), both.places


def test_a_thread_that_waits_for_a_lock_gets_it():
    lock = threading.Lock()

    def exp(input, *, out=None):
        with lock:
            result = torch.exp(input)
            result = result if out is None else out.copy_(result)
        return result

    own = Implementation("tested", SimpleNamespace(exp=exp), {"exp": ("deterministic",)})
    assert judged("threads", CASES["exp"], own).status == PASSED


def test_what_takes_long_keeps_its_turn(monkeypatch):
    monkeypatch.setattr(context_calls, "PATIENCE", 1e-3)
    seen = []

    def long(name):
        seen.append(name)
        sum(range(1_000_000))
        seen.append(name)

    context_calls._Turns(lambda thread, line: False).run([functools.partial(long, name) for name in "ab"])
    assert seen == ["a", "a", "b", "b"]


def test_nothing_below_calls_of_triton_is_divided(tmp_path):
    def kernel():
        one = 1
        return one + 1

    source = "def launch(kernel):\n    value = kernel()\n    return value\n"
    folder = context_calls._folders("triton")[0]
    for file, lines in ((f"{folder}runtime.py", 0), (str(tmp_path / "own.py"), 4)):
        module = {}
        exec(compile(source, file, "exec"), module)
        both = context_calls._Turns(lambda thread, line: True)
        assert both.run([functools.partial(module["launch"], kernel)] * 2) == [2, 2]
        assert both.lines == [lines, lines]


def test_only_small_calls_are_made_in_contexts():
    large = Case(op="exp", args=(spec(200, 200),))
    finding = runner.judge(large, load("torch"), CPU, ["fake", "compiled", "threads"])
    assert {one.check for one in finding.findings}.isdisjoint({"fake", "compiled", "threads"})
