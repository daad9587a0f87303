"""Copies of matrices: every layout of source and target, and rows that begin at multiples of 16 bytes."""

import pytest
import torch

from ntops.host import matrix_copy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def layouts(batch, rows, columns, dtype):
    """Matrices of all kinds of strides, by name."""

    def made(*shape):
        return torch.arange(torch.Size(shape).numel(), device=DEVICE).view(shape).to(dtype)

    return {
        "plain": made(batch, rows, columns),
        "turned": made(batch, columns, rows).mT,
        "spread": made(batch, rows, 2 * columns)[..., ::2],
        "within": made(batch, rows, columns + 3)[..., 1 : columns + 1],
        "one": made(1, rows, columns).expand(batch, rows, columns),
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 70, 9), (3, 12, 300), (1, 65, 64)], ids=str)
def test_every_layout_is_copied(shape, dtype):
    for name, source in layouts(*shape, dtype).items():
        found = matrix_copy.aligned(source)
        assert torch.equal(found, source), name
        assert found.stride(1) * found.element_size() % 16 == 0
        assert shape[2] == 1 or found.stride(2) == 1

        for other, target in layouts(*shape, dtype).items():
            if other != "one" or shape[0] == 1:
                target.zero_()
                assert torch.equal(matrix_copy.write(target, source), source), (name, other)


def test_what_lies_between_rows_is_not_written():
    whole = torch.zeros(2, 5, 24, device=DEVICE)
    matrix_copy.write(whole[..., 4:17], torch.ones(2, 5, 13, device=DEVICE))
    assert whole.sum() == 2 * 5 * 13
    assert (whole[..., 4:17] == 1).all()
