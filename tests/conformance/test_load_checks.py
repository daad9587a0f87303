"""Masked loads that Triton compiles wrongly are found in what it makes of a kernel."""

import os
import subprocess
import sys
from pathlib import Path


def test_a_negative_constant_of_less_than_a_register_is_found():
    """A process of its own, since kernels are interpreted in this one."""
    script = Path(__file__).with_name("filling_kernel.py")
    compiles = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, env=compiles)
    found = [line.split("|") for line in done.stdout.splitlines()]

    assert [(dtype, filler) for dtype, filler, _, said in found if said] == [
        ("i8", "-128"),
        ("i16", "-32768"),
        ("i16", "-2"),
    ]
    # The assembly shows the wrong register; all bits of -1 are those of its sign, and int32 fills a register.
    assert [(dtype, filler) for dtype, filler, wide, said in found if wide == "True" and not said] == [
        ("i16", "-1"),
        ("i32", "-7"),
    ]
