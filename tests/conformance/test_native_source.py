"""Functions of C++ and CUDA files as implementations: signatures, errors, and a C++ file that is built and judged."""

from __future__ import annotations

import functools
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conformance.cases import Case
from conformance.implementations import ImplementationError, NotProvided, load, native_source
from conformance.implementations.native_source import NativeError, declaration
from conformance.runner import judge
from strategies.specs import TensorSpec

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "native" / "gelu_cuda.py"
SOURCE = """
at::Tensor scaled(const at::Tensor& input, int64_t dim, std::optional<double> factor, const std::string& how) {
  TORCH_CHECK_NOT_IMPLEMENTED(how == "plain", "plain form only\\nwith more lines");
  return at::softmax(input, dim) * factor.value_or(1.0);
}
"""
MODULE = """
from conformance.implementations.native_source import native
signature = 'softmax(Tensor input, int dim, float? factor=None, *, str how="plain") -> Tensor'
softmax = native("soft.cpp", signature, "scaled")
"""
WRONG = "main.cpp:12:43: error: 'class std::optional<double>' has no member named 'no_such'"
X = TensorSpec((3, 4), "float32")


@pytest.mark.parametrize(
    ("signature", "told"),
    [
        ("gelu(Tensor input) -> Tensor", "at::Tensor gelu(const at::Tensor& input);"),
        (
            'f(Tensor? weight, int[] shape, float eps=1e-5, *, bool b, str how="x", int? k=None) -> (Tensor, Tensor)',
            "std::tuple<at::Tensor, at::Tensor> f(const std::optional<at::Tensor>& weight, "
            "const std::vector<int64_t>& shape, double eps, bool b, const std::string& how, std::optional<int64_t> k);",
        ),
    ],
)
def test_declarations(signature, told):
    assert declaration(signature) == told
    assert declaration(signature, "other").replace("other(", f"{signature.partition('(')[0]}(") == told


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("gelu(Tensr input) -> Tensor", "not a signature: unknown type specifier"),
        ("gelu(Tensor input", "not a signature"),
        ("gelu(Tensor input, Scalar s) -> Tensor", "s is of a type that is not among Tensor, "),
        ("gelu(Tensor input) -> int", "returns a Tensor, or several"),
    ],
)
def test_signatures_that_are_none(signature, message):
    with pytest.raises(NativeError, match=message):
        declaration(signature)


def test_files_that_cannot_be_built(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "__file__", str(tmp_path / "module.py"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name, message in (("none.cu", "no such file"), ("a.py", "a CUDA file ends in .cu"), ("a.cu", "on a GPU")):
        if name != "none.cu":
            (tmp_path / name).touch()
        with pytest.raises(NativeError, match=message):
            native_source.native(name, "gelu(Tensor input) -> Tensor")


def test_a_cuda_file_is_built_with_its_declaration(monkeypatch):
    """torch is asked to build the source and the declaration; its function is called by position, with the defaults."""
    asked = {}

    def load_inline(name, **how):
        asked.update(how)
        return SimpleNamespace(gelu=lambda *args: args)

    monkeypatch.setattr(native_source.cpp_extension, "load_inline", load_inline)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delitem(sys.modules, EXAMPLE.stem, raising=False)
    gelu = load(str(EXAMPLE)).function("gelu")
    source = EXAMPLE.with_name("gelu.cu").read_text()
    assert (asked["cuda_sources"], asked["with_cuda"], asked["functions"]) == (source, True, ["gelu"])
    declared = "at::Tensor gelu(const at::Tensor& input, const std::string& approximate);"
    assert asked["cpp_sources"] == declared
    # The file defines what is declared, apart from the semicolon.
    assert declared.removesuffix(";") + " {" in source
    assert gelu(1) == (1, "none")
    assert gelu(approximate="tanh", input=2) == (2, "tanh")


def test_a_cuda_file_without_a_gpu_is_no_implementation(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delitem(sys.modules, EXAMPLE.stem, raising=False)
    with pytest.raises(ImplementationError, match="a CUDA file is judged on a GPU, and torch finds none here"):
        load(str(EXAMPLE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("native")
    (found / "soft.cpp").write_text(SOURCE)
    (found / "native_softmax.py").write_text(MODULE)
    (found / "native_broken.py").write_text(MODULE.replace("soft.cpp", "broken.cpp"))
    (found / "broken.cpp").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(found / "built"))
        yield found


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("c++") and shutil.which("ninja")), reason="needs a C++ compiler and ninja")
def test_a_cpp_file_is_built_and_judged(folder):
    implementation = load(str(folder / "native_softmax.py"))
    checks = ["values", "errors", "metadata", "inputs_unchanged"]
    for case, status in (
        (Case(op="softmax", args=(X, -1)), "passed"),
        (Case(op="softmax", args=(X,), kwargs={"dim": 0}), "passed"),
        (Case(op="softmax", args=(X, 5)), "passed"),
        (Case(op="softmax", args=(X, 1.5)), "passed"),
        (Case(op="softmax", args=(X, 0), kwargs={"dtype": None}), "not_provided"),
    ):
        verdict = judge(case, implementation, checks=checks)
        assert verdict.status == status, (case, verdict.findings)
    softmax = implementation.function("softmax")
    with pytest.raises(NotProvided, match=r"^plain form only$"):
        softmax(torch.ones(3), 0, how="other")
    assert torch.equal(softmax(torch.ones(4), 0, 2.0), torch.full((4,), 0.5))
    # A wrong function is told.
    wrong = load(str(folder / "native_softmax.py"))
    wrong.provider.softmax = functools.partial(softmax, factor=1.01)
    assert judge(Case(op="softmax", args=(X, -1)), wrong, checks=checks).failure.check == "values"


def test_the_compilers_errors_are_told(folder, monkeypatch):
    # As torch raises what g++ prints: a build of its own would take half a minute.
    error = f"""Error building extension 'conformance_broken': [1/2] c++ -c main.cpp -o main.o
FAILED: [code=1] main.o
main.cpp: In function 'at::Tensor scaled(const at::Tensor&, int64_t)':
{WRONG}
   12 |   return at::softmax(input, dim) * factor.no_such(1.0);
ninja: build stopped: subcommand failed.
"""
    monkeypatch.setattr(native_source.cpp_extension, "load_inline", lambda *_, **__: _raise(RuntimeError(error)))
    with pytest.raises(ImplementationError, match=r"broken\.cpp: cannot be built: ") as raised:
        load(str(folder / "native_broken.py"))
    assert WRONG in str(raised.value)
    assert "Error building" not in str(raised.value)


def _raise(error):
    raise error
