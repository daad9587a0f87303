"""``out=`` under torch's rules, each asked of torch in the same test."""

import contextlib
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ntops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def outputs(shape, dtype):
    """Ways to give ``out`` for a result of this shape, by name."""
    return {
        "right": torch.empty(shape, dtype=dtype, device=DEVICE),
        "empty": torch.empty(0, dtype=dtype, device=DEVICE),
        "wrong size": torch.empty(7, dtype=dtype, device=DEVICE),
        "transposed": torch.empty(*reversed(shape), dtype=dtype, device=DEVICE).t(),
        "strided": torch.empty(shape[0], 2 * shape[1], dtype=dtype, device=DEVICE)[:, ::2],
        "wider": torch.empty(shape, dtype=torch.float64, device=DEVICE),
        "empty and wider": torch.empty(0, dtype=torch.float64, device=DEVICE),
    }


CALLS = {
    "add": lambda library, out: library.add(_matrix(), _matrix().t().contiguous().t(), out=out),
    "div": lambda library, out: library.div(_matrix(), _matrix()[:1], out=out),
    "eq": lambda library, out: library.eq(_matrix(), 3, out=out),
    "mm": lambda library, out: library.mm(_matrix(), torch.eye(4, device=DEVICE), out=out),
}


def _matrix():
    return torch.arange(1.0, 13.0, device=DEVICE).view(3, 4)


@pytest.mark.parametrize("kind", list(outputs((3, 4), torch.float32)))
@pytest.mark.parametrize("op", CALLS)
def test_out_is_written_resized_and_returned_as_by_torch(op, kind):
    if op == "mm" and "wider" in kind:
        return  # products want the very dtype: tests of arguments have it

    dtype = torch.bool if op == "eq" else torch.float32
    answers = []

    for library in (torch, ntops.torch):
        out = outputs((3, 4), dtype)[kind]

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            returned = CALLS[op](library, out)

        assert returned is out
        answers.append((out.tolist(), out.stride(), out.dtype, [warning.category for warning in caught]))

    assert answers[0] == answers[1]


VECTOR, MATRIX, BATCH = (5,), (4, 5), (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (VECTOR, (5, 4)),
        (MATRIX, VECTOR),
        (MATRIX, (5, 4)),
        (BATCH, VECTOR),
        (BATCH, (5, 4)),
        (VECTOR, (2, 5, 4)),
        (MATRIX, (2, 5, 4)),
        (BATCH, (3, 5, 4)),
    ],
)
@pytest.mark.parametrize("columns_first", [False, True])
def test_an_out_of_any_strides_is_written_or_refused_by_products_as_by_torch(left, right, columns_first):
    left, right = (torch.randn(size, device=DEVICE) for size in (left, right))

    if columns_first and right.ndim > 1:
        right = right.mT.contiguous().mT

    shape = torch.matmul(left, right).shape
    made = {
        "contiguous": lambda: torch.zeros(shape, device=DEVICE),
        "every other": lambda: torch.zeros((*shape[:-1], 2 * shape[-1]), device=DEVICE)[..., ::2],
        "rows apart": lambda: torch.zeros((*shape[:-1], shape[-1] + 3), device=DEVICE)[..., : shape[-1]],
        "reversed": lambda: torch.zeros(shape[::-1], device=DEVICE).permute(*reversed(range(len(shape)))),
        "one row": lambda: torch.zeros((1, 2 * shape[-1]), device=DEVICE)[:, ::2],
    }

    for out in made.values():
        (expected, how), (found, found_how) = (_matmul(library, left, right, out()) for library in (torch, ntops.torch))
        assert found_how == how
        torch.testing.assert_close(found, expected)


def _matmul(library, left, right, out):
    """The result, with its strides and how many warnings came with it, or what it is refused with."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        try:
            assert library.matmul(left, right, out=out) is out
        except RuntimeError as error:
            return torch.zeros(()), type(error).__name__

    return out, (out.stride(), len(caught))


@pytest.mark.parametrize("columns", [1, 4])
def test_an_expanded_out_of_a_vector_times_a_matrix_gets_room_of_its_own(columns):
    out = torch.zeros(1, device=DEVICE).expand(columns)
    left, right = torch.randn(5, device=DEVICE), torch.randn(5, columns, device=DEVICE)

    with pytest.warns(UserWarning, match="resized"):
        ntops.torch.matmul(left, right, out=out)

    torch.testing.assert_close(out, left @ right)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_numbers_alone_go_into_no_out(op):
    with pytest.raises(RuntimeError, match="are numbers") as raised:
        getattr(ntops.torch, op)(2, 1, out=torch.zeros((), device=DEVICE))

    assert raised.type is RuntimeError

    with pytest.raises(NotImplementedError, match="make one of them a tensor"):
        getattr(ntops.torch, op)(2, 1)


@pytest.mark.parametrize("op", ["add", "div"])
def test_an_input_can_be_the_output(op):
    expected = getattr(torch, op)(_matrix(), 2)
    matrix = _matrix()
    assert getattr(ntops.torch, op)(matrix, 2, out=matrix) is matrix
    assert torch.equal(matrix, expected)


def test_a_product_can_be_written_over_its_factor():
    matrix = torch.randn(70, 70, dtype=torch.float64, device=DEVICE)
    expected = matrix @ matrix
    ntops.torch.mm(matrix, matrix, out=matrix)
    torch.testing.assert_close(matrix, expected)


def test_a_refused_out_is_not_touched():
    out = torch.full((3, 4), 7, device=DEVICE)

    with pytest.raises(RuntimeError, match="argument 'out'"):
        ntops.torch.add(_matrix(), 1.5, out=out)

    assert out.tolist() == [[7] * 4] * 3


def test_an_empty_result_resizes_out():
    out = torch.empty(3, device=DEVICE)

    with pytest.warns(UserWarning, match="argument 'out' had shape"):
        ntops.torch.add(torch.empty(0, 4, device=DEVICE), 1, out=out)

    assert out.shape == (0, 4)


WRITES = {
    "add": lambda to, tensor: to.add(tensor, tensor, out=tensor),
    "relu": lambda to, tensor: to.relu(tensor, inplace=True),
    "dropout": lambda to, tensor: to.dropout(tensor, 0.5, True, True),
    "mm": lambda to, tensor: to.mm(torch.ones_like(tensor), torch.ones_like(tensor), out=tensor),
    "sum": lambda to, tensor: to.sum(torch.ones(3, 2, 2, device=DEVICE), 0, out=tensor),
}


@pytest.mark.parametrize("op", WRITES)
def test_what_inference_mode_made_is_written_there_alone(op):
    with torch.inference_mode():
        tensor = torch.ones(2, 2, device=DEVICE)
    # Whatever was recorded of others is not repeated for it.
    for _ in range(3):
        WRITES[op](ntops.torch, torch.ones(2, 2, device=DEVICE))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="inference mode"):
            WRITES[op](ntops.torch, tensor)
    assert torch.equal(tensor, torch.ones_like(tensor))
    with torch.inference_mode():
        WRITES[op](ntops.torch, tensor)


@pytest.mark.parametrize("inner", [(), (4,)])
def test_what_inference_mode_made_is_not_resized(inner):
    """torch resizes ``out`` to a matrix for the product of a vector and a matrix, and then refuses to write it."""
    with torch.inference_mode():
        out = torch.zeros(4, device=DEVICE)
    with pytest.raises(RuntimeError, match="argument 'out' was made in inference mode"):
        ntops.torch.matmul(torch.ones(3, device=DEVICE), torch.ones(3, *inner, device=DEVICE), out=out)
    assert torch.equal(out, torch.zeros(4, device=DEVICE))


def test_powers_of_1_keep_what_inference_mode_made():
    """They read nothing, so that torch takes any dtype and any overlap, but no such tensor: under a mode neither."""

    class Nothing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with torch.inference_mode():
        out = torch.zeros(2, device=DEVICE)
    for mode in (contextlib.nullcontext(), Nothing()):
        with mode, pytest.raises(RuntimeError, match="inference mode"):
            ntops.torch.pow(1.0, torch.ones(2, device=DEVICE), out=out)
        assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
@pytest.mark.parametrize("op", ["add", "clamp", "eq", "exp"])
def test_one_element_may_have_a_stride_of_0(op, shape):
    """As a part of an expanded tensor has, or one that a scalar was expanded to."""
    others = {"clamp": (0.25, 0.5), "exp": ()}.get(op, (2.0,))
    operand = torch.full(shape, 0.75, device=DEVICE).as_strided(shape, (0,) * len(shape))
    expected = getattr(torch, op)(operand, *others)
    out = torch.zeros(1, dtype=expected.dtype, device=DEVICE).as_strided(shape, (0,) * len(shape))
    assert getattr(ntops.torch, op)(operand, *others, out=out) is out
    assert torch.equal(out, expected)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3)])
@pytest.mark.parametrize("sizes", [(5,), None])
@pytest.mark.parametrize("name", ["cos", "logsumexp", "sum"])
def test_an_out_without_elements_may_be_expanded(name, sizes, shape):
    """No two of them are one place in memory, whether it is resized or not."""
    arguments = () if name == "cos" else (-1,)
    results = []
    for library in (torch, ntops.torch):
        out = torch.empty(40, device=DEVICE).as_strided(shape, (0,) * len(shape), 8)
        like = (*out.shape, 4) if arguments else out.shape
        input = torch.ones(like if sizes is None else sizes, device=DEVICE)
        results.append(getattr(library, name)(input, *arguments, out=out))
        assert results[-1] is out
    torch.testing.assert_close(*results)
    assert results[0].shape == results[1].shape


def test_an_out_that_is_expanded_is_refused():
    out = torch.empty(1, device=DEVICE).expand(5)
    with pytest.raises(RuntimeError, match="argument 'out' is expanded"):
        ntops.torch.cos(torch.ones(5, device=DEVICE), out=out)
