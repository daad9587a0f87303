"""A planted defect of each kind is caught, and named; what is allowed is let through."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from ntops import interpreter
from ntops.interpreter import MemoryFault, launch


@triton.jit
def copy(out, x, n, BLOCK: tl.constexpr, SHIFT: tl.constexpr = 0, SCALE: tl.constexpr = 1):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i * SCALE + SHIFT, mask=i < n)
    tl.store(out + i, a, mask=i < n)


def run_copy(x, out=None, n=None, inputs=True, **options):
    """Copy under watch; 35 elements in 5 programs of 8."""
    with interpreter.watch(inputs=[x] if inputs else []) as watcher:
        out = torch.empty(5, 7) if out is None else out
        copy[(5,)](out, x, 35 if n is None else n, BLOCK=8, **options)
        watcher.check_written(out)

    return out


def fault_of(kind, function, *args, **kwargs):
    with pytest.raises(MemoryFault) as caught:
        function(*args, **kwargs)

    fault = caught.value
    assert fault.kind == kind

    return fault


def test_a_right_kernel_passes():
    x = torch.randn(5, 7)

    assert torch.equal(run_copy(x), x)


def test_a_load_past_the_end():
    fault = fault_of("outside", run_copy, torch.randn(5, 7), SHIFT=2)

    assert (fault.kernel, fault.argument, fault.index, fault.program, fault.lane) == ("copy", "x", 35, (4, 0, 0), (1,))
    assert "past its last" in str(fault)
    assert "program (4, 0, 0), lane (1,)" in str(fault)
    file, line = fault.line.rsplit(":", 1)
    assert Path(file).name == Path(__file__).name
    assert "tl.load(x" in Path(file).read_text().splitlines()[int(line) - 1]


def test_a_load_before_the_start():
    fault = fault_of("outside", run_copy, torch.randn(5, 7), SHIFT=-3)

    assert fault.index == -3
    assert "3 elements before its first" in str(fault)


def test_a_load_from_the_neighbouring_tensor_of_one_storage():
    base = torch.randn(70)

    assert fault_of("outside", run_copy, base[:35], SHIFT=1).index == 35


def test_a_load_between_the_elements_of_a_view():
    fault = fault_of("outside", run_copy, torch.randn(5, 14)[:, ::2])

    assert "between its elements" in str(fault)
    # Every other element is all of that view, and so are those of an expanded one.
    run_copy(torch.randn(70)[::2], SCALE=2)
    run_copy(torch.randn(1).expand(35), SCALE=0)


def test_a_masked_lane_may_point_anywhere():
    run_copy(torch.randn(5, 7), n=35, SCALE=1)
    copied = run_copy(torch.randn(4, 7), out=torch.zeros(5, 7), n=28)

    assert copied[4].eq(0).all()
    assert run_copy(torch.empty(0), out=torch.zeros(5, 7), n=0).eq(0).all()


def test_a_store_past_the_end():
    fault = fault_of("outside", run_copy, torch.randn(5, 7), out=torch.zeros(4, 7))

    assert (fault.argument, fault.program, fault.lane) == ("out", (3, 0, 0), (4,))
    assert "stores to argument 'out'" in str(fault)


def test_an_empty_tensor_has_no_elements():
    fault_of("outside", run_copy, torch.empty(0))


def test_an_element_never_written():
    fault = fault_of("unwritten", run_copy, torch.randn(5, 7), n=20)

    assert fault.index == (2, 6)
    assert "one of 15 among 35" in str(fault)
    assert fault.kernel == "copy"


def test_an_output_that_no_kernel_wrote():
    with interpreter.watch() as watcher:
        assert fault_of("unwritten", watcher.check_written, [torch.empty(3)]).index == (0,)
        # What torch fills is written, in part or as a whole.
        watcher.check_written((torch.empty(3).fill_(1), torch.zeros(3), torch.empty(2).copy_(torch.ones(2))))
        half = torch.empty(4)
        half[:2] = 1
        assert fault_of("unwritten", watcher.check_written, half).index == (2,)


def test_a_load_of_an_element_never_written():
    def run():
        with interpreter.watch():
            x = torch.empty(35)
            x[:10] = 0
            copy[(5,)](torch.empty(35), x, 35, BLOCK=8)

    fault = fault_of("uninitialized", run)
    assert (fault.argument, fault.index, fault.program) == ("x", (10,), (1, 0, 0))


def test_a_kernel_reads_what_another_launch_wrote():
    with interpreter.watch() as watcher:
        middle, out = torch.empty(35), torch.empty(35)
        copy[(5,)](middle, torch.ones(35), 35, BLOCK=8)
        copy[(5,)](out, middle, 35, BLOCK=8)
        watcher.check_written(out)


def test_memory_that_is_used_again_is_not_mistaken():
    with interpreter.watch():
        for _ in range(50):
            torch.empty(4096)
            copy[(5,)](torch.empty(4096), torch.ones(4096), 35, BLOCK=8)


def test_a_store_to_an_input():
    x = torch.randn(5, 7)
    fault = fault_of("input", run_copy, x, out=x)

    assert "input 0" in str(fault)
    # A view of it is it too.
    assert fault_of("input", run_copy, x, out=x.view(-1)).argument == "out"

    with interpreter.watch(inputs=[x], writable=[x]):
        copy[(5,)](x, x, 35, BLOCK=8)


@triton.jit
def collide(out, x, ACROSS: tl.constexpr, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    a = tl.load(x + p * BLOCK + i)
    if ACROSS:
        tl.store(out + i, a)
    else:
        tl.store(out + p + i * 0, a)


@pytest.mark.parametrize("across", [True, False], ids=["programs", "lanes"])
def test_different_values_at_one_address(across):
    def run(x):
        with interpreter.watch():
            collide[(4,)](torch.zeros(8), x, ACROSS=across, BLOCK=8)

    fault = fault_of("race", run, torch.arange(32.0))
    assert fault.argument == "out"
    # The same value is no race, NaN included.
    run(torch.full((32,), float("nan")))


@triton.jit
def late_collision(out, n, STEP: tl.constexpr):
    p = tl.program_id(0)
    tl.store(out + p, p)
    tl.store(out + (p + STEP) % n, p)


def test_a_collision_with_an_earlier_store():
    def run(step, n=300):
        with interpreter.watch():
            late_collision[(n,)](torch.zeros(n, dtype=torch.int32), n, STEP=step)

    run(0)
    assert "stores there" in str(fault_of("race", run, 1))


@triton.jit
def wrap(out, SIZE: tl.constexpr):
    p = tl.program_id(0)
    tl.store(out + p % SIZE, p)


def test_a_collision_with_a_store_of_programs_that_ran_before():
    # More programs than ever run together.
    def run(size, programs=launch.CHUNK + 500):
        with interpreter.watch():
            wrap[(programs,)](torch.zeros(programs, dtype=torch.int32), SIZE=size)

    run(launch.CHUNK + 500)
    fault = fault_of("race", run, launch.CHUNK + 100)
    assert fault.program == (launch.CHUNK + 100, 0, 0)
    assert "another value than program (0, 0, 0) stores there" in str(fault)


@triton.jit
def read_neighbour(out, n):
    p = tl.program_id(0)
    tl.store(out + p, p)
    tl.store(out + n + p, tl.load(out + (p + 1) % n))


def test_a_load_of_what_another_program_stores():
    def run():
        with interpreter.watch():
            read_neighbour[(4,)](torch.zeros(8, dtype=torch.int32), 4)

    assert "in the same launch" in str(fault_of("race", run))


@triton.jit
def parting(out, x, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, p, mask=i < n)
    for k in range(p % 3):
        tl.store(out + i, k + p + tl.load(x + i, mask=i < n), mask=i < n)


def test_programs_that_part_are_watched_alike():
    with interpreter.watch() as watcher:
        out = torch.empty(64, dtype=torch.int32)
        parting[(8,)](out, torch.ones(64, dtype=torch.int32), 64, BLOCK=8)
        watcher.check_written(out)
        partly = torch.empty(64, dtype=torch.int32)
        parting[(8,)](partly, torch.ones(64, dtype=torch.int32), 60, BLOCK=8)
        assert fault_of("unwritten", watcher.check_written, partly).index == (60,)


@triton.jit
def count(out, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + i), 1)


def test_atomics():
    def run(x, out):
        with interpreter.watch():
            out = torch.empty(4, dtype=torch.int32) if out is None else out
            count[(4,)](out, x, BLOCK=8)

    x = torch.arange(32) % 4
    run(x, torch.zeros(4, dtype=torch.int32))
    assert fault_of("outside", run, x + 1, torch.zeros(4, dtype=torch.int32)).index == 4
    assert fault_of("uninitialized", run, x, None).argument == "out"


@triton.jit
def tiled(out, x, rows, columns, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [M, N])
    i = tl.program_id(0) * M
    target.store([i, 0], source.load([i, 0]))


def test_descriptors():
    def run(rows):
        with interpreter.watch() as watcher:
            out = torch.empty(10, 8)
            tiled[(3,)](out, torch.randn(10, 8), rows, 8, M=4, N=8)
            watcher.check_written(out)

    run(10)
    assert fault_of("outside", run, 11).argument == "x"


@triton.jit
def through_function(out, x, n):
    _store(out, tl.load(x), n)


@triton.jit
def _store(out, value, n):
    tl.store(out + n, value)


def test_a_fault_in_a_device_function():
    def run():
        with interpreter.watch():
            through_function[(1,)](torch.zeros(2), torch.zeros(1), 2)

    fault = fault_of("outside", run)
    assert fault.kernel == "through_function"
    line = int(fault.line.rsplit(":", 1)[1])
    assert "tl.store(out + n, value)" in Path(__file__).read_text().splitlines()[line - 1]


def test_nothing_is_watched_afterwards():
    with interpreter.watch():
        pass

    x = torch.zeros(36)
    copy[(5,)](torch.empty(35), x, 35, BLOCK=8, SHIFT=1)


def test_the_environment_variable(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from ntops import interpreter\n"
        "interpreter.install()\n"
        "import torch, triton, triton.language as tl\n"
        "@triton.jit\n"
        "def kernel(x):\n"
        "    tl.store(x + 3, 1.0)\n"
        "kernel[(1,)](torch.zeros(3))\n"
    )

    def run(**environment):
        environment = {**os.environ, **environment}

        return subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)

    watched = run(NTOPS_CHECK_MEMORY="1")
    assert watched.returncode == 1
    assert f"kernel at {script}:6: program (0, 0, 0), lane (): stores to argument 'x'" in watched.stderr


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float64])
def test_every_width(dtype):
    with interpreter.watch() as watcher:
        out = torch.empty(35, dtype=dtype)
        copy[(5,)](out, torch.ones(35, dtype=dtype), 35, BLOCK=8)
        watcher.check_written(out)

    assert (
        fault_of("outside", run_copy, torch.ones(35, dtype=dtype), out=torch.zeros(36, dtype=dtype), n=36).index == 35
    )
