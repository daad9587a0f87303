"""What reaches a kernel is what the compiler would give it; what cannot be run is refused with a message."""

import collections
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from ntops import interpreter
from ntops.interpreter import _triton, launch

ROOT = Path(__file__).parents[2]


@triton.jit
def plain(out, value):
    tl.store(out, value)


@triton.jit
def plain_by_annotation(out, value: "fp64"):  # noqa: F821
    tl.store(out, value)


@triton.jit
def annotated_by_object(out, value: tl.float64):
    tl.store(out, value)


@triton.jit
def wide_integer(out, value: "i64"):  # noqa: F821
    tl.store(out, value * 65536 * 65536)


@triton.jit
def narrow_integer(out, value):
    tl.store(out, value * 65536 * 65536 + 7)


@triton.jit
def wide_by_object(out, value: tl.int64):
    tl.store(out, value * 65536 * 65536)


def scalar(kernel, value, dtype=torch.float64):
    out = torch.zeros(1, dtype=dtype)
    kernel[(1,)](out, value)

    return out.item()


def test_a_python_float_is_float32_unless_annotated():
    assert scalar(plain, 0.1) == torch.tensor(0.1, dtype=torch.float32).item()
    assert scalar(plain, 1e300) == float("inf")
    assert scalar(plain_by_annotation, 0.1) == 0.1
    assert scalar(annotated_by_object, 1e300) == 1e300
    # An integer given for a float.
    assert scalar(plain_by_annotation, 3) == 3.0


def test_a_python_integer_has_the_width_that_it_needs_unless_annotated():
    assert scalar(narrow_integer, 3, torch.int64) == 7
    assert scalar(wide_integer, 3, torch.int64) == 3 << 32
    assert scalar(wide_by_object, 3, torch.int64) == 3 << 32
    assert scalar(plain, 2**40, torch.int64) == 2**40
    assert scalar(plain, True, torch.bool) is True
    assert scalar(plain, False, torch.int32) == 0


def test_a_float_for_an_integer_parameter_is_refused():
    with pytest.raises(TypeError, match="a float was passed"):
        wide_integer[(1,)](torch.zeros(1), 1.5)


@triton.jit
def with_defaults(out, value=3, FACTOR: tl.constexpr = 2, other=None):
    if other is not None:
        value = value + tl.load(other)
    tl.store(out, value * FACTOR)


def test_defaults_keywords_none_and_compiler_options():
    out = torch.zeros(1)
    with_defaults[(1,)](out)
    assert out.item() == 6
    with_defaults[(1,)](out, FACTOR=5, other=torch.ones(1), num_warps=8, num_stages=2)
    assert out.item() == 20
    with_defaults[(1,)](value=4, out=out)
    assert out.item() == 8


Pair = collections.namedtuple("Pair", ["first", "second"])


@triton.jit
def with_tuple(out, pair, numbers):
    tl.store(out, tl.load(pair[0]) + tl.load(pair[1]) * numbers[0] + numbers[1])


def test_tuples():
    out = torch.zeros(1)
    with_tuple[(1,)](out, (torch.ones(1), torch.full((1,), 2.0)), (3, 0.5))

    assert out.item() == 7.5


@triton.jit
def with_named_tuple(out, pair):
    tl.store(out, tl.load(pair.first) - tl.load(pair.second))


def test_named_tuples():
    out = torch.zeros(1)
    with_named_tuple[(1,)](out, Pair(torch.ones(1), torch.full((1,), 3.0)))

    assert out.item() == -2


@triton.jit
def meta_shape(out, shape_only, size):
    tl.store(out, size)


def test_a_tensor_without_data_is_let_through():
    out = torch.zeros(1)
    meta_shape[(1,)](out, torch.empty(7, device="meta"), 7)

    assert out.item() == 7


def test_grids():
    seen = []
    out = torch.zeros(1)

    def grid(meta):
        seen.append(meta["FACTOR"] + meta["value"])

        return (1,)

    with_defaults[grid](out, value=1, FACTOR=4)
    assert seen == [5]
    assert out.item() == 4
    with_defaults[(0,)](torch.full((1,), 9.0), 1)


@triton.jit
def swap(x, y):
    a = tl.load(x)
    tl.store(x, tl.load(y))
    tl.store(y, a)


def test_reinterpreted_tensors():
    x, y = torch.tensor([1, 2], dtype=torch.int8).view(torch.int16), torch.tensor([7], dtype=torch.int16)
    swap[(1,)](triton.reinterpret(x, tl.int16), y)

    assert x.view(torch.int8).tolist() == [7, 0]
    assert y.tolist() == [513]


@triton.jit
def failing(x, n):
    p = tl.program_id(0)
    if p == 2:
        tl.device_assert(n < 3, "n is too large")
    tl.store(x + p, 1)


@triton.jit
def ill_typed(x):
    tl.store(x, tl.load(x) << 1.5)


def test_an_error_names_kernel_line_and_program():
    x = torch.zeros(4)

    with pytest.raises(
        _triton.InterpreterError, match=r"failing at .*test_launch\.py:\d+, program \(2, 0, 0\): .*too large"
    ):
        failing[(4,)](x, 5)

    # The programs before it have run, as one after the other.
    assert x.tolist() == [1, 1, 0, 0]

    with pytest.raises(_triton.InterpreterError, match=r"ill_typed at .*test_launch\.py:\d+"):
        ill_typed[(4,)](x)


@triton.jit
def block_condition(x):
    if tl.load(x + tl.arange(0, 4)) > 0:
        tl.store(x, 1.0)


@triton.jit
def assembler(x):
    tl.store(x, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x)], tl.int32, True, 1))


def test_what_the_compiler_refuses_is_refused():
    with pytest.raises(_triton.InterpreterError, match="truth of a block"):
        block_condition[(1,)](torch.ones(4))


def test_what_is_not_supported_is_refused():
    with pytest.raises(_triton.InterpreterError, match="does not support inline_asm"):
        assembler[(1,)](torch.ones(1, dtype=torch.int32))


def test_every_builder_method_of_this_triton_is_ours_or_refused():
    """What a new version adds must not run on code that knows nothing of many programs."""
    ours = type(_triton.builder())
    inherited = [
        name
        for name in dir(ours)
        if name.startswith("create_") and getattr(ours, name) is getattr(_triton.BaseBuilder, name, None)
    ]

    assert inherited == []


@triton.autotune(configs=[triton.Config({"FACTOR": 3}), triton.Config({"FACTOR": 4})], key=["value"])
@triton.jit
def tuned(out, value, FACTOR: tl.constexpr):
    tl.store(out, value * FACTOR)


def test_an_autotuned_kernel_takes_its_first_configuration():
    out = torch.zeros(1)
    tuned[(1,)](out, 2)

    assert out.item() == 6


def test_a_kernel_may_use_what_surrounds_it():
    offset = tl.constexpr(4)

    @triton.jit
    def helper(x):
        return x + offset

    @triton.jit
    def kernel(out):
        tl.store(out, helper(tl.program_id(0)))

    out = torch.zeros(1)
    kernel[(1,)](out)

    assert out.item() == 4


def test_nothing_is_added_to_the_module_of_a_kernel():
    before = set(globals())
    plain[(1,)](torch.zeros(1), 1.0)

    assert set(globals()) == before


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        # Without a GPU, also where there is one.
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.environ["PYTHONPATH"],
            "HOME": "/nonexistent",
            "CUDA_VISIBLE_DEVICES": "",
            **environment,
        },
        capture_output=True,
        text=True,
    )


def test_installing_twice_is_installing_once():
    load = tl.load
    interpreter.install()

    assert tl.load is load


def test_triton_imported_too_early():
    result = python("import triton.language; from ntops import interpreter; interpreter.install()")

    assert result.returncode == 1
    assert "set TRITON_INTERPRET=1 before Python starts" in result.stderr


@pytest.mark.parametrize(
    ("requirements", "wanted"),
    [
        (["numpy", "triton==3.6.0; platform_system == 'Linux'"], "3.6.0"),
        (["triton==9.9.0"], "3.7.1"),
        (["numpy"], "3.7.1"),
        (None, "3.7.1"),
    ],
)
def test_a_version_that_nobody_tried(requirements, wanted):
    result = python(
        "import os; os.environ['TRITON_INTERPRET'] = '1'\n"
        "from importlib import metadata\n"
        f"metadata.requires = lambda name: {requirements}\n"
        "import triton; triton.__version__ = '9.9.0'\n"
        "from ntops import interpreter; interpreter.install()"
    )

    assert result.returncode == 1
    assert "works with Triton 3.6.0, 3.7.1, 3.9.0, and this is 9.9.0: " in result.stderr
    assert f"pip install triton=={wanted}\n" in result.stderr


def test_importing_the_interpreter_imports_neither_triton_nor_ninetoothed():
    result = python(
        "import importlib.util, sys\n"
        "spec = importlib.util.find_spec('ntops')\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['ntops'] = module\n"
        "import ntops.interpreter\n"
        "print(sorted({'triton', 'ninetoothed', 'torch'} & set(sys.modules)))"
    )

    assert result.stdout.strip() == "[]", result.stderr


def test_kernels_run_without_a_home():
    result = python(
        "from ntops import interpreter; interpreter.install()\n"
        "import ninetoothed, ninetoothed.language as ntl, torch\n"
        "from ninetoothed import Tensor\n"
        "import tempfile, pathlib\n"
        "path = pathlib.Path(tempfile.mkdtemp()) / 'app.py'\n"
        "path.write_text('import ninetoothed.language as ntl\\ndef application(x, y):\\n    y = ntl.abs(x)\\n')\n"
        "import importlib.util as u\n"
        "spec = u.spec_from_file_location('app', path); app = u.module_from_spec(spec); spec.loader.exec_module(app)\n"
        "def arrange(x, y):\n    return x.tile((4,)), y.tile((4,))\n"
        "kernel = ninetoothed.make(arrange, app.application, (Tensor(1), Tensor(1)))\n"
        "out = torch.empty(9); kernel(-torch.ones(9), out); print(out.sum().item())"
    )

    assert result.stdout.strip() == "9.0", result.stderr


def test_a_sequential_kernel_is_remembered():
    @triton.jit
    def ticket(counter, out):
        mine = tl.atomic_add(counter, 1)
        tl.atomic_add(counter, 1)
        tl.store(out + tl.program_id(0), mine)

    out = torch.zeros(5, dtype=torch.int32)
    ticket[(5,)](torch.zeros(1, dtype=torch.int32), out)

    assert launch.kernel_of(ticket).is_sequential
    assert out.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("programs", [1, 2])
def test_nothing_refers_to_an_argument_when_a_launch_is_over(programs):
    x = torch.zeros(4)
    before = sys.getrefcount(x)
    failing[(programs,)](x, 2)
    assert sys.getrefcount(x) == before
