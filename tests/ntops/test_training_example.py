"""docs/examples/train.py in small: the loss curve in ``ntops.torch.use()`` is torch's."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

import ntops

FILE = Path(__file__).parents[2] / "docs" / "examples" / "train.py"
SMALL = ["--layers", "1", "--width", "32", "--heads", "2", "1", "--vocabulary", "24", "--batch", "4", "--length", "12"]
SMALL += ["--rate", "3e-3", "--device", "cuda" if torch.cuda.is_available() else "cpu"]


@pytest.fixture(scope="module")
def train():
    spec = importlib.util.spec_from_file_location("train", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def curves(text):
    """The printed losses: torch's and ours."""
    rows = re.findall(r"^ +\d+ +(\d+\.\d+) +(\d+\.\d+) +\S+$", text, re.MULTILINE)
    return [[float(row[place]) for row in rows] for place in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "plain", "--steps", "5"],
        ["--model", "plain", "--steps", "3", "--dtype", "bfloat16"],
        ["--model", "plain", "--steps", "3", "--autocast"],
        ["--model", "llama", "--steps", "3"],
    ],
    ids=" ".join,
)
def test_losses_are_those_of_torch(train, arguments, capsys):
    if "llama" in arguments:
        pytest.importorskip("transformers")

    assert train.main([*SMALL, *arguments]) == 0
    text = capsys.readouterr().out
    expected, found = curves(text)
    assert len(found) == int(arguments[3])
    # It learns, and our kernels did it.
    assert expected[-1] < 0.98 * expected[0]
    assert found[-1] < 0.98 * found[0]
    log = ntops.torch.use.log()
    # Seven products of the layer, and the last.
    assert log.replaced["linear"] == 8
    assert log.replaced["scaled_dot_product_attention"] == log.replaced["cross_entropy"] == 1
    assert f"{log.replaced['linear']}  linear" in text


class Halved(TorchFunctionMode):
    """In place of ``use``, a block in which the gradient of silu is half of what it is."""

    log = staticmethod(str)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found / 2 + found.detach() / 2 if func is torch.nn.functional.silu else found


def test_another_curve_is_told(train, monkeypatch, capsys):
    monkeypatch.setattr(ntops.torch, "use", Halved)
    arguments = [*SMALL, "--model", "plain", "--steps", "8", "--limit", "1e-5"]
    assert train.main(arguments) == 1
    assert "is not within 1e-05" in capsys.readouterr().out


def test_a_loss_that_is_nan_is_within_no_limit(train):
    (found,) = train.distances([float("nan")], [1.0])
    assert not found <= 1.0
    assert train.distances([1.02, 0.5], [1.0, 0.5]) == pytest.approx([0.02, 0.0])


def test_text_can_be_learned_and_follows_from_the_seed(train):
    """A model that knows which tokens follow has a loss below that of a uniform guess, by far."""
    options = train.parsed(["--steps", "20", "--vocabulary", "24"])
    tokens = train.text(options)
    assert tokens.shape == (20, 16, 257)
    assert torch.equal(tokens, train.text(options))
    assert not torch.equal(tokens, train.text(train.parsed(["--steps", "20", "--vocabulary", "24", "--seed", "1"])))
    pairs = torch.zeros(24, 24).index_put_(
        (tokens[..., :-1].flatten(), tokens[..., 1:].flatten()), torch.ones(()), accumulate=True
    )
    assert (pairs > 0).sum(1).max() <= train.SUCCESSORS
    odds = torch.tensor(train.ODDS)
    assert -(odds * odds.log()).sum().item() == pytest.approx(0.91, abs=0.01)


def test_ten_million_parameters(train):
    options = train.parsed(["--model", "plain"])
    count = sum(parameter.numel() for parameter in train.Plain(options).parameters())
    assert count == pytest.approx(10e6, rel=0.02)
    assert (options.steps, options.limit) == (300, 0.01)
    assert train.parsed(["--dtype", "bfloat16"]).limit == train.parsed(["--autocast"]).limit == 0.02
