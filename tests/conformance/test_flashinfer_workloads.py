"""Workloads of a definition of FlashInfer Trace become saved cases, also of one whose calls cannot be drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forked_python
import pytest
import torch
from safetensors.torch import save_file
from test_flashinfer_dataset import judged, read

from conformance import __main__ as command_line
from conformance import cases, corpus, flashinfer_trace
from conformance import spec as specs
from strategies import stored

ROOT = Path(__file__).parents[2]
PAGED = """
import torch

def run(q, cache, indptr, indices, scale):
    assert indices.shape[0] == indptr[-1].item()
    rows = []
    for row in range(q.shape[0]):
        k = cache[indices[indptr[row] : indptr[row + 1]].long()].float()
        rows.append(torch.softmax(k @ q[row].float() * scale, 0) @ k)
    return torch.stack(rows).to(q.dtype)
"""


@pytest.fixture(autouse=True)
def _data(monkeypatch):
    monkeypatch.setenv(stored.FOLDERS, "")


@pytest.fixture
def command(capsys):
    """Run a command of the line; return its status, and what it printed and told of errors."""

    def run(*arguments):
        status = command_line.main([*map(str, arguments)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def paged(tmp_path):
    """A data set of attention over pages, whose index says which and how many."""
    bfloat16 = {
        name: {"shape": shape, "dtype": "bfloat16"} for name, shape in (("q", ["b", "d"]), ("cache", ["p", "d"]))
    }
    int32 = {name: {"shape": [size], "dtype": "int32"} for name, size in (("indptr", "ends"), ("indices", "n"))}
    about = {
        "name": "paged_d8",
        "op_type": "paged",
        "axes": {"d": {"type": "const", "value": 8}} | {name: {"type": "var"} for name in ("b", "p", "ends", "n")},
        "inputs": bfloat16 | int32 | {"scale": {"shape": None, "dtype": "float32"}},
        "outputs": {"output": {"shape": ["b", "d"], "dtype": "bfloat16"}},
        "constraints": ["ends == b + 1", "n == indptr[-1].item()"],
        "reference": PAGED,
    }
    for folder in ("definitions/paged", "workloads/paged", "blob"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    index = {"indptr": torch.tensor([0, 2, 3], dtype=torch.int32), "indices": torch.tensor([4, 0, 2]).int()}
    save_file(index, tmp_path / "data/blob/index.safetensors")
    inputs = {name: {"type": "safetensors", "path": "blob/index.safetensors", "tensor_key": name} for name in index}
    inputs |= {"q": {"type": "random"}, "scale": {"type": "scalar", "value": 0.35}}
    lines = [
        {
            "definition": "paged_d8",
            "workload": {"uuid": uuid, "axes": {"b": 2, "p": 5, "ends": 3, "n": 3}, "inputs": inputs},
        }
        for uuid in ("first", "second")
    ]
    path = tmp_path / "data/definitions/paged/paged_d8.json"

    def change(workload=(), **parts):
        for one in lines:
            one["workload"] |= dict(workload)
        path.write_text(json.dumps(about | parts))
        (tmp_path / "data/workloads/paged/paged_d8.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return path

    change()
    return change


def test_a_definition_with_constraints_is_judged_by_its_workloads_alone(paged, tmp_path, command):
    path = paged()
    with pytest.raises(flashinfer_trace.ArgumentError, match="would not meet the constraint 'ends == b"):
        flashinfer_trace.definition(path)
    assert not flashinfer_trace.operator(path).drawn
    assert command("trace", "read", path, "--out", tmp_path / "cases")[0] == command_line.PASSED
    names: dict = {}
    exec(PAGED, names)
    found = corpus.files([tmp_path / "cases"])
    first, second = (read(one) for one in found)
    # What the workload does not name is random, too, and each has its own seed; an index is the workload's.
    assert {one.values.partition(":")[0] for one in cases.operands(first)} == {"normal", "stored"}
    assert first.args[2:] == second.args[2:]
    assert first.args[0].seed != second.args[0].seed
    for one in found:
        assert judged(path, one, names["run"]).status == "passed"
        wrong = judged(path, one, lambda q, cache, indptr, indices, scale: names["run"](q, cache, indptr, indices, 0.3))
        assert wrong.status == "failed"


@pytest.mark.slow
def test_no_calls_are_drawn_of_it(paged, tmp_path, command):
    path = paged()
    command("trace", "read", path, "--out", tmp_path / "cases", "--limit", "1")
    assert len(corpus.files([tmp_path / "cases"])) == 1
    (tmp_path / "library.py").write_text(PAGED.replace("def run", "def paged_d8"))
    (tmp_path / "own").mkdir()
    line = [sys.executable, "-m", "conformance", "run", "--specs", str(path), "--implementation", "library.py"]
    line += ["--op", "paged_d8", "--device", "cpu", "--corpus", "own", "--workload", "cases", "-n", "0", "-rs"]
    made = forked_python.run(line, cwd=tmp_path, timeout=280)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "of 1 cases 1 judged" in made.stdout
    assert command("versus", "torch", "torch", "--specs", path, "--op", "paged_d8")[0] == command_line.BAD_INPUT
    assert "paged_d8" not in specs.registry()


BLOB = {"type": "safetensors", "path": "blob/index.safetensors", "tensor_key": "indptr"}


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({"indptr": BLOB | {"path": "../data/blob/index.safetensors"}}, "is not within the data set"),
        ({"indptr": BLOB | {"path": "/etc/passwd"}}, "'/etc/passwd' is not within the data set"),
        ({"indptr": BLOB | {"path": "blob/none.safetensors"}}, "none.safetensors cannot be read: [Errno 2]"),
        ({"indptr": BLOB | {"path": "definitions/paged/paged_d8.json"}}, "paged_d8.json cannot be read: "),
        ({"indptr": BLOB | {"path": "blob/pointer"}}, "is a pointer of Git LFS: git lfs pull"),
        ({"indptr": BLOB | {"tensor_key": "none"}}, "cannot be read: "),
        ({"indices": BLOB | {"tensor_key": "indptr"}, "n": None}, "the definition has no input 'n'"),
        ({"q": BLOB}, "input 'q' is int32[3], and not bfloat16[2, 8]"),
        ({"scale": BLOB}, "input 'scale' is a number"),
        ({"q": {"type": "scalar", "value": 1}}, "input 'q' is a tensor"),
        ({"q": {"type": "gaussian"}}, "no workloads of FlashInfer Trace"),
        ({"indptr": {"type": "safetensors"}}, "no workloads of FlashInfer Trace"),
        ({"scale": {"type": "scalar", "value": "much"}}, "no workloads of FlashInfer Trace"),
    ],
)
def test_workloads_that_do_not_fit_are_one_line(inputs, complaint, paged, tmp_path, command):
    good = {"indptr": BLOB, "scale": {"type": "scalar", "value": 0.5}}
    path = paged({"inputs": good | {name: one or {"type": "random"} for name, one in inputs.items()}})
    (tmp_path / "data/blob/pointer").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    status, out, told = command("trace", "read", path, "--out", tmp_path / "cases")
    assert (status, out, told.count("\n")) == (command_line.BAD_INPUT, "", 1), told
    assert complaint in told
    assert [*tmp_path.iterdir()] == [tmp_path / "data"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"workload": {"axes": {"b": 2, "p": 5, "n": 3}}}, "has no size of axis 'ends'"),
        ({"workload": {"axes": {"b": 2, "p": -5, "ends": 3, "n": 3}}}, "axis 'p', or a negative one"),
        ({"workload": {"axes": {"b": 2, "p": 10**9, "ends": 3, "n": 3}}}, "elements; --max-elements allows"),
        ({"workload": {"axes": 7}}, "no workloads of FlashInfer Trace"),
        ({"name": "another"}, "'scale' is a number, and no workload says which"),
        ({"reference": "def run(:"}, "its reference failed"),
    ],
)
def test_definitions_and_axes_that_do_not_fit_are_one_line(change, complaint, paged, tmp_path, command):
    path = paged(**change)
    status, out, told = command("trace", "read", path, "--out", tmp_path / "cases")
    assert (status, out, told.count("\n")) == (command_line.BAD_INPUT, "", 1), told
    assert complaint in told
    assert [*tmp_path.iterdir()] == [tmp_path / "data"]


def test_what_is_random_follows_from_the_uuid(tmp_path, command):
    shaped = {dtype: {"shape": ["n"], "dtype": dtype} for dtype in ("float16", "float8_e4m3fn", "int64", "bool")}
    about = {
        "name": "several",
        "axes": {"n": {"type": "var"}},
        "inputs": shaped | {"scale": {"shape": None, "dtype": "float32"}},
        "reference": "def run(a, b, c, d, scale):\n    return a * scale",
    }
    number = {"type": "scalar", "value": 2}
    lines = [
        {"definition": "several", "workload": {"uuid": uuid, "axes": {"n": 9}, "inputs": inputs}}
        for uuid, inputs in (("a", {"scale": number}), ("b", {"scale": number}), ("c", {"scale": {"type": "random"}}))
    ]
    # A data set without folders of types.
    for folder in ("definitions", "workloads"):
        (tmp_path / folder).mkdir()
    (tmp_path / "definitions/several.json").write_text(json.dumps(about))
    (tmp_path / "workloads/several.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for out in ("one", "two"):
        told = command("trace", "read", tmp_path / "definitions/several.json", "--out", tmp_path / out)[1]
        assert told == f"wrote 3 cases of 3 workloads of several to {tmp_path / out}\n"
    one, two = ([path.read_bytes() for path in corpus.files([tmp_path / out])] for out in ("one", "two"))
    assert one == two
    by_uuid = {found.note.split()[1]: found for found in map(read, corpus.files([tmp_path / "one"]))}
    assert len({found.digests for found in by_uuid.values()}) == 3
    assert [cases.dtype_of(found) for found in by_uuid.values()] == ["float16"] * 3
    assert (by_uuid["a"].args[4], type(by_uuid["c"].args[4])) == (2, float)


def test_a_definition_without_workloads_is_one_line(paged, tmp_path, command):
    path = paged()
    (alone := tmp_path / "alone.json").write_text(path.read_text().replace('"shape": null', '"shape": []'))
    assert "no workloads are beside it" in command("trace", "read", alone, "--out", tmp_path / "cases")[2]
    assert "is there already" in command("trace", "read", path, "--out", tmp_path / "data")[2]
