"""Check the machine code that NVIDIA's assembler made of a kernel: for reads of registers that nothing wrote, and for
registers that are spilled in loops."""

from __future__ import annotations

import bisect
import itertools
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.x]+)\s*(.*?);")
_ADDRESS = re.compile(r"\s*/\*([0-9a-f]{4,})\*/")
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
_WRITES = re.compile(r"U[A-Z0-9]+|R2UR|S2UR|CS2UR|VOTEU|LDCU|C?REDUX")
_PREDICATE = re.compile(r"UP[0-9T]")
_REGISTER = re.compile(r"\bUR(\d+)\b")
_DESCRIPTOR = re.compile(r"gdesc\[UR(\d+)\].*")


def checked(cubins: Sequence[bytes], arch: int | str) -> list[tuple[str, float]]:
    """Return for each kernel for sm_``arch`` what ``unwritten`` and ``spill_share`` say of its functions; of an empty
    one, nothing and 0.

    All are disassembled at once: nvdisasm takes a third of a second to start, and milliseconds for a kernel. Raises
    ValueError where one shows no instructions.
    """
    functions = [[*_functions(cubin)] if cubin else [] for cubin in cubins]
    if any(cubin and not found for cubin, found in zip(cubins, functions, strict=True)):
        raise ValueError("a kernel's ELF file has no section .text")
    codes = iter(disassembled([code for found in functions for code in found], arch))
    of_each = [[next(codes) for _ in found] for found in functions]
    return [(next(filter(None, map(unwritten, one)), ""), max(map(spill_share, one), default=0.0)) for one in of_each]


def disassembled(functions: Sequence[bytes], arch: int | str) -> list[str]:
    """Return the machine code of functions as text (SASS)."""
    if not functions:
        return []
    # Kernels for Hopper and later use instructions of that very generation.
    target = f"SM{arch}a" if int(arch) >= 90 else f"SM{arch}"
    starts = [*itertools.accumulate(map(len, functions), initial=0)]
    found: list[list[str]] = [[] for _ in functions]
    for line in _told("nvdisasm", b"".join(functions), "--no-dataflow", "--binary", target).splitlines():
        if address := _ADDRESS.match(line):
            found[bisect.bisect(starts, int(address[1], 16)) - 1].append(line)
    if not all(found):
        raise ValueError("nvdisasm shows no instructions of a kernel")
    return ["\n".join(lines) for lines in found]


def _functions(cubin: bytes) -> Iterator[bytes]:
    """Yield the machine code of each function, a section of the kernel's ELF file."""
    table, size, count, names = struct.unpack_from("<40xQ10x3H", cubin)
    # The fields of each section: the offset of its name, its offset in the file, and its length.
    sections = [struct.unpack_from("<I20x2Q", cubin, table + size * number) for number in range(count)]
    for name, start, length in sections:
        if cubin.startswith(b".text.", sections[names][1] + name):
            yield cubin[start : start + length]


def resources(cubin: bytes) -> tuple[int, int]:
    """Return the registers and the spilled bytes of a thread."""
    usage = re.search(r"REG:(\d+) STACK:(\d+)", _told("cuobjdump", cubin, "--dump-resource-usage"))
    return (int(usage[1]), int(usage[2])) if usage else (0, 0)


def _told(tool: str, cubin: bytes, *options: str) -> str:
    """Return what one of the tools that come with Triton prints of a kernel."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [getattr(knobs.nvidia, tool).path, *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def spill_share(code: str) -> float:
    """Return the largest share of spill instructions (stores and loads of local memory) among the loops of a function;
    where it has none, their share of the function."""
    addresses, spills, loops = [], [0], []
    for line in code.splitlines():
        address, found = _ADDRESS.match(line), _INSTRUCTION.match(line)
        if not (address and found):
            continue
        name = found[1].partition(".")[0]
        addresses.append(int(address[1], 16))
        spills.append(spills[-1] + (name in ("STL", "LDL")))
        # A function ends with a branch to itself.
        if name == "BRA" and (target := _TARGET.search(found[2])) and int(target[1], 16) < addresses[-1]:
            loops.append((bisect.bisect_left(addresses, int(target[1], 16)), len(addresses)))
    return max((spills[end] - spills[start]) / max(end - start, 1) for start, end in loops or [(0, len(addresses))])


def unwritten(code: str) -> str:
    """Return the first instruction of a function that reads a uniform register which none before it writes, or nothing.

    ptxas 12.8 made such code of a loop with two wgmma whose factors lay in shared memory in two ways: the descriptor of
    one of them came from a register that nothing had written.
    """
    written: set[int] = set()
    for line in code.splitlines():
        if not (found := _INSTRUCTION.match(line)):
            continue
        name, operands = found[1], [operand.strip() for operand in found[2].split(",")]
        target, kind = None, name.partition(".")[0]
        # A predicate that is written comes before the register, and alone where a comparison writes nothing else.
        while operands and "SETP" not in kind and _PREDICATE.fullmatch(operands[0]):
            operands = operands[1:]
        if operands and _WRITES.fullmatch(kind) and (one := re.fullmatch(r"UR(\d+)", operands[0])):
            target, operands = int(one[1]), operands[1:]
        if _read(kind, operands) - written:
            return f"{name} {found[2].strip()}"
        if target is not None:
            count = 4 if ".128" in name else 2 if ".64" in name or "WIDE" in name else 1
            written |= set(range(target, target + count))
    return ""


def _read(kind: str, operands: Sequence[str]) -> set[int]:
    """Return the uniform registers that the operands of an instruction read.

    A descriptor takes two. The product of Hopper (wgmma, HGMMA and its like) names both of its descriptors as one, by
    the first of four registers, and does not read those of the first factor where that comes from registers, as the
    operand before them says. The product of Blackwell (UTCHMMA and its like) names each.
    """
    found: set[int] = set()
    for place, operand in enumerate(operands):
        if descriptor := _DESCRIPTOR.fullmatch(operand):
            first, count = int(descriptor[1]), 2
            if kind.endswith("GMMA"):
                in_registers = place > 1 and re.fullmatch(r"R\d+(\.reuse)?", operands[place - 1])
                first, count = (first + 2, 2) if in_registers else (first, 4)
            found |= {*range(first, first + count)}
        else:
            found |= {int(number) for number in _REGISTER.findall(operand)}
    return found
