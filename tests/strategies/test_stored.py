"""Tensors whose elements are in files: with their strides, found by digest, and refused where they are others."""

from __future__ import annotations

import sys

import pytest
import torch

from strategies import layouts, stored, tensors
from strategies.specs import TensorSpec

BASE = torch.arange(384.0).view(2, 8, 24)


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.setenv(stored.FOLDERS, "")


def kept(tensor, folder):
    return tensors.keep(tensor, tensor.stride(), tensor.storage_offset(), folder)


@pytest.mark.parametrize(
    "tensor",
    [
        BASE,
        BASE[..., 8:16],
        BASE.transpose(1, 2),
        BASE[..., 8:16].unflatten(-1, (2, 4)).transpose(1, 2),
        BASE[:, ::2],
        BASE.bfloat16()[..., ::3],
        BASE[0, 0, :1].expand(5, 7),
        BASE[0, :3, :1].unsqueeze(1).expand(3, 5, 1),
        BASE.to(torch.float8_e4m3fn),
        BASE > 7,
        BASE.long(),
        torch.tensor(3.0),
        torch.empty(0, 3),
        torch.tensor([float("nan"), float("-inf"), -0.0]),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}",
)
def test_elements_and_strides_are_kept(tensor, tmp_path):
    spec = kept(tensor, tmp_path)
    stored.look_in(tmp_path)
    made = tensors.materialize(spec)
    assert tensors.digest(made) == tensors.digest(tensor)
    wide = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    assert [made.stride(dim) for dim in wide] == [tensor.stride(dim) for dim in wide]
    assert made.storage_offset() == tensor.storage_offset() % 16


@pytest.mark.parametrize("tensor", [BASE.unfold(2, 5, 2), BASE.view(-1)[::100]])
def test_other_layouts_become_contiguous(tensor, tmp_path):
    spec = kept(tensor, tmp_path)
    stored.look_in(tmp_path)
    assert spec.layout == layouts.Layout()
    assert torch.equal(tensors.materialize(spec), tensor)


def test_equal_tensors_are_saved_once(tmp_path):
    assert kept(BASE, tmp_path).values == kept(BASE.clone(), tmp_path).values
    assert len([*tmp_path.iterdir()]) == 1


def test_a_spec_that_follows_from_a_stored_one_has_its_elements(tmp_path):
    spec = kept(BASE[0, 0, :3], tmp_path)
    stored.look_in(tmp_path)
    assert tensors.materialize(TensorSpec((2, 2), "int32", spec.values)).tolist() == [[0, 1], [2, 0]]


def test_a_file_has_what_the_spec_says(tmp_path):
    spec = kept(BASE, tmp_path)
    stored.look_in(tmp_path)
    tensors.check_file(spec)
    tensors.check_file(TensorSpec((3,), "float32"))
    for shape, dtype, message in (
        ((384,), "float32", r"holds float32\[2, 8, 24\], and not float32\[384\]"),
        ((2, 8, 24), "int32", r"holds float32\[2, 8, 24\], and not int32\[2, 8, 24\]"),
        ((2, 8, 24), "float16", None),
        ((), "float32", None),
    ):
        with pytest.raises(stored.StoredError, match=message):
            tensors.check_file(TensorSpec(shape, dtype, spec.values))
    big = kept(torch.zeros(1 << 12), tmp_path)
    with pytest.raises(stored.StoredError, match="holds more than the 8 bytes of the tensor"):
        tensors.check_file(TensorSpec((2,), "float32", big.values))


def test_elements_that_are_others_are_refused(tmp_path):
    first, second = kept(BASE, tmp_path), kept(BASE + 1, tmp_path)
    stored.look_in(tmp_path)
    paths = [stored.find(spec.values.removeprefix("stored:")) for spec in (first, second)]
    paths[1].replace(paths[0])
    with pytest.raises(stored.StoredError, match="holds other elements: their digest is"):
        tensors.materialize(first)
    paths[0].write_bytes(b"{}")
    with pytest.raises(stored.StoredError, match="cannot be read"):
        tensors.materialize(first)
    paths[0].unlink()
    with pytest.raises(stored.StoredError, match="is not beside the case"):
        tensors.materialize(first)


@pytest.mark.parametrize("name", ["", "0123456789abcde", "0123456789ABCDEF", "../../../../../a", "0" * 17])
def test_a_digest_is_16_hex_digits(name):
    with pytest.raises(ValueError, match="have no digest of 16 hex digits"):
        TensorSpec((2,), "float32", f"stored:{name}")


def test_without_safetensors_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(stored.StoredError, match=r"pip install 'ntops\[shadow\]'"):
        kept(BASE, tmp_path)
