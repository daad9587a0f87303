"""Stand-alone scripts: they judge as the harness does, and nothing in a case becomes code."""

from __future__ import annotations

import ast
import math
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from conformance import corpus, float_formats, repro, repro_data
from conformance.cases import Case, NonFinite, Same
from conformance.compare import compare
from conformance.implementations import load
from conformance.runner import Verdict, judge
from conformance.selftest.defect_registry import NAME
from conformance.spec import Expected
from strategies.specs import Layout, Special, TensorSpec

CPU = torch.device("cpu")
X = TensorSpec((3, 4), "float32")


def made(case: Case, implementation: str = "torch") -> str:
    loaded = load(implementation)
    return repro.script(case, judge(case, loaded), loaded, CPU)


def status(text: str, folder: Path, monkeypatch, *arguments: str) -> int:
    script = folder / "script.py"
    script.write_text(text)
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    with pytest.raises(SystemExit) as exit:
        runpy.run_path(str(script), run_name="__main__")
    return exit.value.code


def test_what_may_be_taken_beyond_torch_may_be_refused(tmp_path, monkeypatch):
    script = made(Case(op="layer_norm", args=(X, 4)), f"{NAME}:layer_norm_int_counts_dims")
    assert status(script, tmp_path, monkeypatch) == 1
    assert status(script, tmp_path, monkeypatch, "torch") == 0
    assert status(script, tmp_path, monkeypatch, "ntops.torch") == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_interval_is_the_rule_of_the_comparison(dtype):
    """For many oracles and bounds: the ends of the interval pass, and their neighbours in the output dtype do not."""
    form, random = float_formats.FORMATS[dtype], np.random.default_rng(0)
    oracles = np.concatenate(
        [
            random.normal(size=60),
            np.ldexp(random.normal(size=60), random.integers(-30, 16, size=60)),
            [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, form.max, -form.max, form.subnormal, 1.5 * form.subnormal],
        ]
    )
    for value in oracles:
        for bound in (0.0, float(abs(value)) * 2.0**-7 if math.isfinite(value) else 0.5, 3 * form.subnormal):
            expected = Expected(torch.tensor([value]), torch.tensor([bound], dtype=torch.float64))
            ulp = float(float_formats.ulp(np.array([value]), dtype)[0])
            low, high = repro_data.interval(float(value), 0.0, bound, ulp, form)
            center = torch.tensor([value], dtype=torch.float64).to(dtype)
            candidates = {float(center), math.inf, -math.inf, math.nan, form.max, -form.max, 0.0}
            for end in {low, high}:
                around = torch.tensor([end], dtype=torch.float64).to(dtype)
                for towards in (math.inf, -math.inf):
                    step = around
                    for _ in range(3):
                        candidates.add(float(step))
                        step = torch.nextafter(step, torch.full_like(step, towards))
            for candidate in candidates:
                passes = compare(torch.tensor([candidate], dtype=torch.float64).to(dtype), expected).passed
                inside = low <= candidate <= high or (math.isnan(low) and math.isnan(candidate))
                assert passes == inside, (value, bound, candidate, low, high)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(
    "case",
    [
        Case(op="add", args=(X, Same(0)), kwargs={"alpha": 3, "out": TensorSpec((5,), "float32")}),
        Case(op="add", args=(X, NonFinite("nan")), kwargs={"out": Same(0)}),
        Case(
            op="add",
            args=(TensorSpec((2, 3), "int64", values="uniform", layout=Layout((1, 0), (1, 2), offset=3)), True),
        ),
        Case(op="div", args=(TensorSpec((40,), "float64", specials=(Special(3, "inf"), Special(5, "nan"))), Same(0))),
        Case(op="relu", args=(TensorSpec((9,), "bfloat16", layout=Layout(steps=(2,))),), kwargs={"inplace": True}),
        Case(op="eq", args=(TensorSpec((0, 2), "bool"), 1)),
        Case(op="softmax", args=(TensorSpec((70, 90), "float32"), 1)),
        Case(op="mm", args=(X, X)),
    ],
    ids=lambda case: case.op,
)
def test_torch_is_right(case, tmp_path, monkeypatch, capsys):
    assert status(made(case), tmp_path, monkeypatch) == 0, capsys.readouterr().out


def test_large_results_are_judged_at_the_worst_element(tmp_path, monkeypatch):
    case = Case(op="relu", args=(TensorSpec((100_003,), "float32", specials=(Special(77_777, "nan"),)),))
    text = made(case, "conformance.selftest.planted:relu_nan")
    assert status(text, tmp_path, monkeypatch) == 1
    assert status(text, tmp_path, monkeypatch, "torch") == 0


def test_inputs_that_are_too_large_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(repro, "MAX_BYTES", 47)
    case, implementation = Case(op="add", args=(X, 1)), load("torch")
    with pytest.raises(repro.ReproError, match="its inputs take 48 bytes; a script holds at most 47"):
        repro.script(case, Verdict("add-0", "add", "failed"), implementation, CPU)
    message = corpus.save(case, judge(case, implementation), implementation, CPU, tmp_path)
    assert "without the harness: no script was made, its inputs take 48 bytes" in message
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


@pytest.mark.parametrize("text", ['"""\nimport os', "'\nexit()\n'", "\\", "\r\x0c\u2028exit()", "#", "{0}%s"])
def test_nothing_in_a_case_becomes_code(text, tmp_path, monkeypatch):
    case = Case(op="div", args=(X, 2.0), kwargs={"rounding_mode": text}, note=text)
    source = made(case)
    plain = made(Case(op="div", args=(X, 2.0), kwargs={"rounding_mode": "floor "}))
    assert [type(node) for node in ast.walk(ast.parse(source))] == [type(node) for node in ast.walk(ast.parse(plain))]
    assert status(source, tmp_path, monkeypatch) == 0


def test_keywords_that_are_no_names_are_refused():
    with pytest.raises(repro.ReproError, match="'a=1, b' is not a name"):
        made(Case(op="add", args=(X, 1), kwargs={"a=1, b": 1}))


def test_script_names_its_torch_function(tmp_path, monkeypatch):
    for op, found in {"relu": "torch.nn.functional:relu", "add": "torch:add"}.items():
        arguments = (X,) if op == "relu" else (X, 1)
        assert f"'reference': '{found}'" in made(Case(op=op, args=arguments))


def test_the_worst_place_of_one_gradient_is_none_of_a_smaller_one():
    verdict = SimpleNamespace(failure=SimpleNamespace(index=(99, 64)))
    places = repro_data._places(torch.zeros(100, 65), verdict)
    assert 99 * 65 + 64 in places
    assert len(repro_data._places(torch.zeros(64, 100), verdict)) <= repro_data.MAX_PLACES
