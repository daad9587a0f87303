"""Check what Triton made of a kernel for masked loads whose other lanes NVIDIA's code fills wrongly."""

from __future__ import annotations

import re

_CONSTANT = re.compile(r"(%[\w#]+) = arith\.constant dense<(-\d+)> : tensor<[\dx]+xi(8|16)\b")
_LOAD = re.compile(r"= tt\.load %[\w#]+, %[\w#]+, (%[\w#]+)")


def wrongly_filled(ttgir: str) -> str:
    """Return what is wrong with a masked load of a kernel, or an empty string.

    Several int8 or int16 lie in one register. Triton 3.6 to 3.9 fill it from a constant by repeating the constant's
    bits over those of its sign, so that all lanes but the first become -1; -1 itself comes out right.
    """
    constants = {name: (int(value), bits) for name, value, bits in _CONSTANT.findall(ttgir)}
    for name in _LOAD.findall(ttgir):
        value, bits = constants.get(name, (0, ""))
        if value < -1:
            return f"a masked load of int{bits} fills other lanes with {value}; Triton makes most of them -1"
    return ""
