"""The judged process: what it holds, what it says of a call, and what it leaves as it was."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import sys
import threading

import pytest
import torch

from conformance import calls, process_state, remote_calls, runtime
from conformance.calls import Foreign, Local, Lost, described
from conformance.cases import Case
from conformance.checks import builtin_class
from conformance.selftest.leftover_state import CHANGES
from conformance.worker import Child
from strategies.specs import TensorSpec

CPU = torch.device("cpu")
TELLS = """
import os, sys
import torch

def relu(input, inplace=False):
    held = sorted({name.partition(".")[0] for name in sys.modules})
    raise ValueError(" ".join([*held, *os.environ]))
"""
OF_THE_HARNESS = {
    "conformance",
    "strategies",
    "reports",
    "pytest",
    "hypothesis",
    "PYTEST_CURRENT_TEST",
    "PYTEST_VERSION",
}


def call(function, *inputs, args=None, **how):
    return Local(function).made(described("op", inputs if args is None else args, {}, inputs, **how), inputs, CPU)


def sent(function, *inputs):
    """What the judge gets of a call that is made in another process."""
    made = runtime.perform(function, inputs, described("op", inputs, {}, inputs), CPU)
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb") as stream:
        runtime.send(theirs, *runtime.describe(made, inputs))
        header, blobs = runtime.receive(stream)
    return remote_calls._outcome(calls.valid(header, remote_calls.Answer), blobs, CPU)


@pytest.mark.parametrize("raises", [False, True])
def test_the_next_call_finds_gradients_on_that_an_unwatched_one_has_switched_off(raises):
    def exp(input):
        torch.set_grad_enabled(False)
        if raises:
            raise RuntimeError("refused")
        return torch.exp(input)

    x = torch.ones(3)
    assert (call(exp, x).error is not None) is raises
    assert torch.is_grad_enabled()
    assert "torch's gradient mode (from True to False)" in call(exp, x, state=True).state


def test_the_process_holds_nothing_of_the_harness(tmp_path, monkeypatch):
    (tmp_path / "tells.py").write_text(TELLS)
    monkeypatch.syspath_prepend(tmp_path)
    with contextlib.closing(Child("tells", "cpu", timeout=60.0)) as child:
        verdict = child.judge(Case(op="relu", args=(TensorSpec((2,), "float32"),)))
    told = verdict.failure.message.split()
    assert "torch" in told or "raised" in told
    assert not OF_THE_HARNESS.intersection(told)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: None, "None"),
        (lambda x: "text", "an object of type str"),
        (lambda x: torch.nn.Parameter(x.clone()), "a tensor that requires grad"),
        (lambda x: x.to_sparse(), "a tensor of layout torch.sparse_coo"),
        (lambda x: x.to("meta"), "a tensor on device meta"),
        (lambda x: _attributed(x.clone()), "a tensor with attributes of its own"),
        (lambda x: x.clone().as_subclass(_Computing), "an object of type _Computing, a subclass of torch.Tensor"),
    ],
)
def test_what_is_no_plain_tensor_is_told(function, kind):
    value = sent(function, torch.ones(3)).value
    assert value is None if kind == "None" else value == Foreign(kind)


def test_results_come_as_they_were_made():
    base = torch.arange(12.0).view(3, 4)
    strided = sent(lambda x: x.clone().t(), base).value
    assert (strided.stride(), strided.tolist()) == ((1, 4), base.t().tolist())
    itself = sent(lambda x: x.mul_(2), base.clone())
    assert itself.value is itself.operands[0]
    assert itself.moved == (True,)
    view = sent(lambda x: x[1], base.clone())
    assert view.value.untyped_storage().data_ptr() == view.operands[0].untyped_storage().data_ptr()
    assert view.value.tolist() == base[1].tolist()
    expanded = sent(lambda x: x[:, :1].clone().expand(3, 4), base)
    assert expanded.value.stride() == (1, 0)
    pair = sent(lambda x: (x + 1, x[:0]), base)
    assert [list(one.shape) for one in pair.value] == [[3, 4], [0, 4]]
    assert sent(lambda x: torch.conj(torch.complex(x, x)).imag, base).value.tolist() == (-base).tolist()


def test_an_empty_result_is_on_its_device():
    placed = remote_calls.Placed("float32", [0], [1], 0, 0, "meta")
    answer = remote_calls.Answer([], {"one": [remote_calls.One(tensor=placed)]}, None, False, "", "", [], [], [], [])
    assert remote_calls._outcome(answer, [bytearray()], CPU).value.device.type == "meta"


class _Computing(torch.Tensor):
    pass


def _attributed(tensor):
    tensor.detach = lambda: tensor + 1
    return tensor


class _Unprintable(KeyError):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("a\udcffb"), ValueError, "a\\udcffb"),
        (KeyError("name"), KeyError, "'name'"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), UnicodeDecodeError, "bad"),
        (FileNotFoundError(2, "none"), FileNotFoundError, "none"),
        (SystemExit(3), SystemExit, "3"),
        (ExceptionGroup("several", [ValueError()]), Exception, "several"),
        (_Unprintable(), KeyError, "its text cannot be had"),
        (torch.OutOfMemoryError("no memory"), RuntimeError, "no memory"),
    ],
)
def test_an_exception_keeps_its_class_and_text(error, kind, text):
    def function(x):
        raise error

    found = sent(function, torch.ones(1)).error
    assert builtin_class(type(found)) is kind
    assert type(found).__name__ == type(error).__name__
    assert text in str(found)


@pytest.mark.parametrize(
    "message",
    [
        struct.pack("<Q", 2**40),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 14) + b'{"sizes":[-2]}',
        struct.pack("<Q", 14) + b'{"sizes":[-1]}',
        struct.pack("<Q", 15) + b'{"sizes":[2e9]}',
        struct.pack("<Q", 25) + b'{"sizes":[99999999999999]}'[:25] + b"}",
    ],
)
def test_a_message_of_another_form_is_refused(message):
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb") as stream:
        theirs.sendall(message)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((ValueError, EOFError)):
            runtime.receive(stream, most=2**20)


def test_a_message_of_many_and_of_large_parts_arrives_whole():
    ours, theirs = socket.socketpair()
    blobs = [bytes([n % 251]) * size for n, size in enumerate((0, 1, 2**21, *(0, 7) * 100, 2**20, 0))]
    with ours, theirs, ours.makefile("rb") as stream:
        sender = threading.Thread(target=runtime.send, args=(theirs, {"a": 1}, blobs))
        sender.start()
        header, found = runtime.receive(stream)
        sender.join()
    assert header["a"] == 1
    assert found == blobs


def test_memory_that_the_other_end_holds_is_not_sent_again():
    ours, theirs = socket.socketpair()
    # Of the same number, and of the same length and another number.
    known, blobs = [bytearray(b"abc"), bytearray(b"xyz")], [memoryview(b"abc"), b"abc", b"xyz"]
    with ours, theirs, ours.makefile("rb") as stream:
        runtime.send(theirs, {}, blobs, known)
        header, found = runtime.receive(stream, known=known)
    assert header["sizes"] == [-1, 3, 3]
    assert found == blobs
    assert found[0] is known[0]


def test_operands_that_are_changed_between_calls_are_sent_anew():
    ours, theirs = socket.socketpair()

    def serve():
        server = runtime._Server(torch, CPU)
        with theirs, theirs.makefile("rb") as stream, contextlib.suppress(EOFError):
            while True:
                asked, blobs = runtime.receive(stream, known=server.sent)
                runtime.send(theirs, *server.answer(asked, blobs), known=server.sent)

    threading.Thread(target=serve).start()
    judged, x = remote_calls.Judged(ours.detach()), torch.ones(1000)

    def relu():
        return judged.call(described("relu", [x], {}, [x]), [x], CPU)

    found = [relu(), relu()]
    x.neg_()
    found.append(relu())
    x.mul_(-3)
    found.append(relu())
    judged._link.close()
    judged._stream.close()
    assert [float(one.value[5]) for one in found] == [1, 1, 0, 3]
    assert [float(one.operands[0][5]) for one in found] == [1, 1, -1, 3]


def test_an_answer_that_does_not_fit_its_memory_loses_the_process():
    placed = remote_calls.Placed("float32", [1000], [1], 0, 0)
    with pytest.raises(ValueError, match="does not fit"):
        placed.over([torch.zeros(4, dtype=torch.uint8)])
    with pytest.raises(Lost, match="broke the protocol"):
        calls.valid({"operands": 3}, remote_calls.Answer)


@pytest.fixture(autouse=True)
def _interruptible():
    """As in a foreground: what a shell starts in the background ignores Ctrl-C already."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_call_changes_is_told_and_put_back(name):
    change = CHANGES[name][1]

    def function(x):
        change()
        return x + 1

    assert call(function, torch.ones(1), state=True, seed=5).state
    assert call(lambda x: x + 1, torch.ones(1), state=True).state == ()
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert sys.gettrace() is None or name != "traces"


def test_state_of_every_kind_has_a_change():
    changes = [change for _, change in CHANGES.values()]
    told = {call(lambda x, one=one: (one(), x + 1)[1], torch.ones(1), state=True, seed=5).state[0] for one in changes}
    assert {name.partition(" (")[0] for name in told} == set(process_state.STATE)


def test_a_precision_that_is_put_back_is_no_change():
    def function(x):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        torch.set_float32_matmul_precision(before)
        return x + 1

    assert call(function, torch.ones(1), state=True).state == ()


@pytest.mark.parametrize("before", ["same", "new"])
def test_a_bare_call_finds_other_contents_at_the_address_first(before):
    seen = []

    def function(x):
        seen.append((x.data_ptr(), x._version, x.tolist()))
        return x + 1

    given = torch.arange(4.0)
    outcome = call(function, given, before=before)
    (first, then, reversed_), (second, version, contents) = seen
    assert first == second
    assert (reversed_, contents) == ([3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0])
    assert (version > then) == (before == "same")
    assert outcome.value.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert given.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_what_a_result_is_beside_its_elements_is_told():
    with torch.inference_mode():
        inference = torch.ones(3)
    for value, traits in ((inference, ("an inference tensor",)), (torch._neg_view(torch.ones(3)), ("negated lazily",))):
        assert sent(lambda x, value=value: value, torch.ones(3)).traits() == (traits,)
    assert sent(lambda x: x, torch.ones(3)).traits() == ((),)


def test_another_storage_is_told_from_the_same_one_resized():
    assert sent(lambda x: x.resize_(1000), torch.ones(3)).replaced == (False,)
    assert sent(lambda x: x.set_(torch.ones(1000)), torch.ones(3)).replaced == (True,)


def test_restored_functions_of_tensors_serve_subclasses(monkeypatch):
    class Own(torch.Tensor):
        pass

    functions = process_state.FUNCTIONS
    noted = process_state.note(CPU, (functions,))
    monkeypatch.setattr(torch.Tensor, "clone", torch.Tensor.neg)
    assert process_state.restore(noted, CPU, (functions,)) == [f"{functions} (Tensor.clone)"]
    assert torch.ones(2).clone().eq(1).all()
    assert type(torch.ones(2).as_subclass(Own) + 1) is Own


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU, of whose backward passes another thread takes care."""

    is_cuda = True


@pytest.mark.parametrize(("differentiated", "lets_go"), [(True, True), (True, False), (False, True)])
def test_a_thread_of_autograd_may_let_go_of_operands_later(differentiated, lets_go):
    operand = torch.ones(3).as_subclass(OnGpu)
    storages, given, made = [operand.untyped_storage()], [operand], runtime.Made([operand])
    holders, kept = runtime._holders(storages, given), [operand]
    # Nobody waits where nothing was differentiated, but the collector may take its time.
    later = threading.Timer(0.05 if differentiated else 600, kept.clear)
    if lets_go:
        later.start()
    named = runtime._kept(made, storages, given, holders, differentiated)
    later.cancel()
    assert bool(named) != (differentiated and lets_go)


def test_zeros_without_memory_are_sent():
    """Autograd gives them for the derivatives of abs."""
    made = runtime.Made((), torch._efficientzerotensor((3,)))
    described, blobs = runtime.describe(made, ())
    (sent,) = described["value"]["one"]
    assert torch.equal(runtime.tensor_of(bytearray(blobs[0]), sent["tensor"]), torch.zeros(3))
