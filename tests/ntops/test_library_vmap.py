"""``torch.ops.ntops`` under torch.func.vmap: a batch gives what a loop gives."""

import warnings

import pytest
import torch
from library_calls import SCALES, normal
from operator_calls import CALLS, PLACES, fresh, results, tensor

import ntops

READ = [one for one in PLACES if one[2] != "out" and not (one[2] == 0 and CALLS[one[0]][one[1]][1].get("inplace"))]


@pytest.mark.parametrize(
    ("name", "number", "place"),
    [
        one
        for one in READ
        if one[0] != "dropout" and one[:2] not in {("scaled_dot_product_attention", k) for k in (1, 2)}
    ],
)
def test_vmap_is_a_loop(name, number, place):
    args, kwargs = fresh(name, number)
    kwargs.pop("out", None)

    if kwargs.get("inplace"):
        return  # What is written once cannot take a batch.

    value = kwargs[place] if isinstance(place, str) else args[place]

    if not value.ndim and name not in SCALES:
        return  # A number has to be read, which no batch has.

    def call(value):
        changed = [value if place == other else one for other, one in enumerate(args)]
        return getattr(ntops.torch, name)(*changed, **{k: value if place == k else v for k, v in kwargs.items()})

    values = torch.stack([value, value if value.itemsize == 1 else value * 2])

    with warnings.catch_warnings(action="error"):
        for dim in (0, value.ndim):
            found = torch.func.vmap(call, in_dims=dim)(values.movedim(0, dim))

            for one, *others in zip(results(found), *(results(call(part)) for part in values), strict=True):
                torch.testing.assert_close(one.float(), torch.stack(others).float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (ntops.torch.add, ((4, 3), (2, 3))),
        (ntops.torch.mul, ((4,), (4, 2, 3))),
        (ntops.torch.mm, ((4, 2, 3), (4, 3, 2))),
        (ntops.torch.bmm, ((4, 2, 2, 3), (2, 3, 2))),
        (lambda a, b: ntops.torch.softmax(a, 0), ((4, 3), (4, 3))),
    ],
    ids=["add", "mul", "mm", "bmm", "softmax"],
)
def test_a_batch_of_operands_is_one_call(function, shapes):
    first, second = (normal(*shape) for shape in shapes)
    in_dims = (0, 0 if shapes[1][0] == 4 else None)
    found = torch.func.vmap(function, in_dims=in_dims)(first, second)
    expected = torch.stack([function(first[k], second if in_dims[1] is None else second[k]) for k in range(4)])
    torch.testing.assert_close(found, expected)


def test_a_batch_of_numbers_promotes_as_numbers():
    halves, numbers = normal(4, 3).half(), normal(4)
    assert torch.func.vmap(ntops.torch.add)(halves, numbers).dtype is torch.float16


@pytest.mark.parametrize("function", [ntops.torch.add, ntops.torch.mul, ntops.torch.clamp])
def test_a_batch_of_numbers_beside_a_number_promotes_as_in_a_loop(function):
    number, halves = normal(1)[0], normal(4).bfloat16()
    found = torch.func.vmap(function, in_dims=(None, 0))(number, halves)
    assert torch.equal(found, torch.stack([function(number, half) for half in halves]))


def test_what_is_no_matrix_is_no_matrix_in_a_batch():
    with pytest.raises(RuntimeError, match="must have 2 dims"):
        torch.func.vmap(ntops.torch.mm)(normal(2, 2, 3, 3), normal(2, 3, 3))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_dropout_draws_for_a_batch_as_torch_does(randomness):
    ones = tensor(2, 4096)
    found = torch.func.vmap(lambda x: ntops.torch.dropout(x, 0.5), randomness=randomness)(ones)
    assert torch.equal(found[0], found[1]) == (randomness == "same")
    assert 0.4 < (found == 0).float().mean() < 0.6

    with pytest.raises(RuntimeError, match="random"):
        torch.func.vmap(lambda x: ntops.torch.dropout(x, 0.5))(ones)
