"""Kernels are found and compiled for GPUs that are not there, and what does not compile fails the session."""

import json

import pytest

from conformance import compilation
from conformance.compilation import SPILL_LIMIT, TARGETS, Compiled, main


@pytest.mark.slow
def test_kernels_compile(tmp_path, capsys):
    file = tmp_path / "kernels.json"
    arguments = ("--op", "relu", "--target", "sm_90", "--target", "gfx942", "--sample", "2", "--json", str(file))
    assert main(["--examples", "1", *arguments]) == 0
    assert "0 failed" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert {name: {row["kernel"] for row in rows} for name, rows in found.items()} == {
        "sm_90": {"ntops_relu", "ntops_elementwise_backward"},
        "gfx942": {"ntops_relu", "ntops_elementwise_backward"},
    }


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_fails_the_session(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_library.py").write_text(
        "import triton, triton.language as tl\n\n\n"
        "@triton.jit\ndef kernel(pointer):\n    tl.store(pointer, tl.no_such_function(1))\n\n\n"
        "def relu(input, inplace=False):\n    kernel[(1,)](input)\n    return input\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--examples", "1", "--op", "relu", "--target", "sm_80", "--implementation", "broken_library"]) == 1
    written = capsys.readouterr().out
    assert "no_such_function" in written
    assert "0 passed" in written


def test_a_sample_takes_turns():
    launches = [
        compilation._Launch(op, None, (), {}, f"{op}{n}") for op, count in (("mm", 5), ("abs", 1)) for n in range(count)
    ]
    found = [{launch.signature for launch in compilation.sampled(launches, start, 2)} for start in range(2)]
    assert found == [{"mm0", "mm2", "mm4", "abs0"}, {"mm1", "mm3", "abs0"}]
    assert compilation.sampled(launches, 3, 1) == launches


def test_limits_are_the_target_s():
    target = TARGETS["sm_80"]
    assert Compiled("mm", "mm", "", shared=target.shared_memory).problem(target) == ""
    assert "shared memory" in Compiled("mm", "mm", "", shared=target.shared_memory + 1).problem(target)
    assert Compiled("mm", "mm", "", spills=SPILL_LIMIT).problem(target) == ""
    assert "spilled" in Compiled("mm", "mm", "", spills=SPILL_LIMIT + 1).problem(target)
    assert "4.0% of a loop" in Compiled("mm", "mm", "", spills=SPILL_LIMIT + 1, spill_share=0.04).problem(target)
    assert Compiled("mm", "mm", "", spills=SPILL_LIMIT + 1, spill_share=0.01).problem(target) == ""


def test_an_unknown_op_is_named(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--op", "no_such_op", "--target", "sm_90"])
    assert end.value.code == 2
    assert "unknown op 'no_such_op'; valid are abs" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("error", ["NotProvided", "NotImplementedError"])
def test_what_is_left_out_has_no_kernel(error, tmp_path, monkeypatch, capsys):
    """What nobody may leave out ends the session."""
    (tmp_path / f"without_{error.lower()}.py").write_text(
        "import ntops.torch\nfrom conformance.implementations import NotProvided\n\n\n"
        f"def relu(input, inplace=False):\n    if input.element_size() > 4:\n        raise {error}('64 bits')\n"
        "    return ntops.torch.relu(input, inplace)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    few = ("--examples", "1", "--sample", "8", "--op", "relu", "--target", "sm_80")
    library = ("--implementation", f"without_{error.lower()}")
    if error == "NotProvided":
        assert main([*few, *library]) == 0
        assert "0 failed" in capsys.readouterr().out
    else:
        with pytest.raises(NotImplementedError, match="64 bits"):
            main([*few, *library])
