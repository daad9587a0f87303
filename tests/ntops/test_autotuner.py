"""Kernels of one's own: how they are launched, measured and remembered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from ntops import timing
from ntops.launch import tuned_tables
from ntops.tune import Autotuner, configurations, engine

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"


pytestmark = pytest.mark.usefixtures("cache")


def timer(functions, inputs, refresh, check, **options):
    """A function takes as many seconds as its result says."""
    found = {}
    for name, function in functions.items():
        args, kwargs = inputs[0]
        value = function(*args, **kwargs)
        check(name, value, args, kwargs)
        (first, *_) = value if isinstance(value, tuple) else (value,)
        found[name] = timing.Times([float(first.flatten()[0])] * 3, "wall")
    return found


def launch(output, size, *, seconds):
    output.fill_(seconds)


SPACE = configurations(seconds=(4, 2, 3, 1))


def made(**options):
    return Autotuner(launch, SPACE, timer=timer, **options)


def test_configurations_are_every_combination():
    assert configurations(BLOCK=(1, 2), num_warps=(4,)) == [{"BLOCK": 1, "num_warps": 4}, {"BLOCK": 2, "num_warps": 4}]


def test_calls_measure_nothing_and_use_what_was_measured():
    tuner, output = made(), torch.zeros(8)
    tuner(output, 5)
    assert output[0] == 4
    result = tuner.tune(output, 5)
    assert output[0] == 4, "arguments are copied"
    assert result.best.options == {"seconds": 1}
    assert (result.latency, result.clock) == (1, "wall")
    tuner(output, 5)
    assert output[0] == 1
    assert made().best(output, 7) == {"seconds": 1}, "another process, and the same size class"
    assert made().best(output, 9) == {"seconds": 4}
    assert made().best(output.double(), 5) == {"seconds": 4}
    assert made(name="another").best(output, 5) == {"seconds": 4}


def test_an_edited_kernel_is_another(monkeypatch):
    output = torch.zeros(8)
    made().tune(output, 5)

    def launch(output, size, *, seconds):
        output.fill_(seconds + 1)

    assert Autotuner(launch, SPACE, timer=timer).best(output, 5) == {"seconds": 4}


def test_what_does_not_fit_never_runs():
    ran = set()

    def launch(output, *, block):
        ran.add(block)
        output.fill_(block)

    tuner = Autotuner(
        launch, configurations(block=(64, 32, 128)), fits=lambda options, output: options["block"] <= 64, timer=timer
    )
    result = tuner.tune(torch.zeros(8))
    assert ran == {32, 64}
    assert (result.pruned, result.best.options) == (1, {"block": 32})
    with pytest.raises(RuntimeError, match="of 3, 0 fit"):
        Autotuner(launch, tuner.space, fits=lambda options, output: False).tune(torch.zeros(8))


def test_wrong_results_are_not_chosen():
    def check(result, args):
        assert result[0][0] != 1, "one is wrong"

    result = made(check=check).tune(torch.zeros(8), 5)
    assert result.best.options == {"seconds": 2}
    assert result.measured[-1].error == "wrong result: one is wrong"


def test_sizes_are_what_the_user_says():
    tuner = made(sizes=lambda output, size: {"rows": output.shape[0]})
    tuner.tune(torch.zeros(8, 3), 5)
    assert tuner.best(torch.zeros(8, 300), 999) == {"seconds": 1}
    assert tuner.best(torch.zeros(9, 3), 5) == {"seconds": 4}


def test_a_space_and_a_grid_are_needed():
    with pytest.raises(ValueError, match="no configuration"):
        Autotuner(launch, [])
    with pytest.raises(ValueError, match="needs a grid"):
        Autotuner(launch, SPACE, grid=(1,))


def test_the_page_s_examples_run(capsys):
    """With the clock of this machine, on interpreted kernels where there is no GPU."""
    scopes = []
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        # Kernels are read from their source, which has to be in a file.
        page = Path(tuned_tables.path("GPU").parents[2], f"example{number}.py")
        page.write_text(block)
        scopes.append({"__name__": f"example{number}"})
        exec(compile(block, str(page), "exec"), scopes[-1])
    scope, made_by_ninetoothed = scopes
    torch.testing.assert_close(made_by_ninetoothed["y"], made_by_ninetoothed["x"] * 2)
    x, y = scope["x"], scope["y"]
    scope["tuner"](y, x, 3.0, x.numel())
    torch.testing.assert_close(y, x * 3)
    result = scope["result"]
    assert len(result.measured) == 6
    assert not [one.error for one in result.measured if one.error]
    assert result.bandwidth == pytest.approx(8e3 / result.latency / 1e12)
    assert scope["tuner"].best(y, x, 3.0, x.numel()) == result.best.options
    assert str(result) in capsys.readouterr().out
    if engine.device_name() == engine.INTERPRETER:
        assert "it says nothing about a GPU" in str(result)
