"""What NVIDIA's assembler made of a kernel, looked at for what it must not hold."""

from __future__ import annotations

import re
import subprocess
import tempfile

_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)\s*(.*?);")
_WRITES = re.compile(r"U[A-Z0-9]+|R2UR|S2UR|CS2UR|VOTEU|LDCU|C?REDUX")
_REGISTER = re.compile(r"\bUR(\d+)\b")


def disassembled(cubin: bytes) -> str:
    """The machine code of a kernel (SASS)."""
    return _told("nvdisasm", cubin)


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and spilled bytes of a thread."""
    usage = re.search(r"REG:(\d+) STACK:(\d+)", _told("cuobjdump", cubin, "--dump-resource-usage"))
    return (int(usage[1]), int(usage[2])) if usage else (0, 0)


def _told(tool: str, cubin: bytes, *options: str) -> str:
    """What one of the tools that come with Triton prints of a kernel."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [getattr(knobs.nvidia, tool).path, *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def unwritten(code: str) -> str:
    """The first instruction that reads a uniform register which none before it writes; empty where there is none.

    ptxas 12.8 made such code of a loop with two wgmma whose factors lay in shared memory in two ways: the descriptor of
    one of them came from a register that nothing had written.
    """
    written: set[int] = set()
    for line in code.splitlines():
        if not (found := _INSTRUCTION.match(line)):
            if ".section" in line and ".text" in line:
                written.clear()
            continue
        name, operands = found[1], [operand.strip() for operand in found[2].split(",")]
        target = None
        if _WRITES.fullmatch(name.partition(".")[0]) and (one := re.fullmatch(r"UR(\d+)", operands[0])):
            target, operands = int(one[1]), operands[1:]
        read = {int(number) for operand in operands for number in _REGISTER.findall(operand)}
        if read - written:
            return f"{name} {found[2].strip()}"
        if target is not None:
            count = 4 if ".128" in name else 2 if ".64" in name or "WIDE" in name else 1
            written |= set(range(target, target + count))
    return ""
