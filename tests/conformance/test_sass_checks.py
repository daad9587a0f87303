"""What is looked for in machine code, in lines of kernels as ptxas 12.8 made them for sm_90 and sm_100."""

from __future__ import annotations

import re

import pytest

from conformance import sass_checks

GOOD = """
        /*0020*/                   UMOV UR32, 0x400 ;
        /*0030*/                   ULDC.64 UR34, c[0x0][0x208] ;
        /*0110*/                   S2UR UR4, SR_CgaCtaId ;
        /*0200*/                   ULEA UR32, UR4, UR32, 0x18 ;
        /*03d0*/                   UIADD3 UR22, UP0, UR32, 0x40, URZ ;
        /*0410*/                   UIADD3.X UR23, URZ, -0x7fffffe0, URZ, UP0, !UPT ;
        /*0420*/                   UISETP.GE.AND UP1, UPT, UR22, 0x1, UPT ;
        /*0430*/                   ULOP3.LUT UP0, UR24, UR22, 0x7fffffe0, URZ, 0xc0, !UPT ;
        /*0440*/                   USHF.L.U32 UR25, UR24, 0x6, URZ ;
        /*0480*/              @!P0 LDG.E.U16 R125, desc[UR34][R186.64] ;
"""


def test_what_is_written_first_may_be_read():
    assert sass_checks.unwritten(GOOD) == ""


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        # As in a product of two matrices whose tiles took turns in shared memory.
        ("UP0, UR32, 0x40", "UP0, UR22, 0x40", "UIADD3 UR22, UP0, UR22, 0x40, URZ"),
        ("ULDC.64 UR34", "ULDC.64 UR36", "LDG.E.U16 R125, desc[UR34][R186.64]"),
        ("UMOV UR32, 0x400", "UMOV UR31, 0x400", "ULEA UR32, UR4, UR32, 0x18"),
        ("UPT, UR22, 0x1", "UPT, UR26, 0x1", "UISETP.GE.AND UP1, UPT, UR26, 0x1, UPT"),
        ("UP0, UR24, UR22", "UP0, UR24, UR26", "ULOP3.LUT UP0, UR24, UR26, 0x7fffffe0, URZ, 0xc0, !UPT"),
    ],
)
def test_a_register_that_nothing_has_written_is_found(before, after, found):
    assert before in GOOD
    assert sass_checks.unwritten(GOOD.replace(before, after)) == found


LOOP = """
        /*0010*/                   STL [R1+0x38], R88 ;
        /*0020*/                   IADD3 R2, R2, 0x1, RZ ;
        /*0030*/                   LDL.LU R4, [R1+0x38] ;
        /*0040*/                   ISETP.GE.AND P0, PT, R2, R3, PT ;
        /*0050*/              @!P0 BRA 0x20 ;
        /*0060*/                   LDL.64 R4, [R1+0x38] ;
        /*0070*/                   BRA 0x70;
"""


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ("BRA 0x20", "BRA 0x20", 0.25),
        # As on Blackwell.
        ("@!P0 BRA 0x20", "BRA.U UP0, 0x20", 0.25),
        ("BRA 0x20", "BRA 0x10", 0.4),
        # Without a loop, of the function.
        ("BRA 0x20", "BRA 0x60", 3 / 7),
        (LOOP, "", 0),
    ],
)
def test_what_is_spilled_in_a_loop_is_a_share_of_it(before, after, share):
    assert before in LOOP
    assert sass_checks.spill_share(LOOP.replace(before, after)) == share


FROM_MEMORY = "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR16], R24"
FROM_REGISTERS = "HGMMA.64x64x16.F32.BF16 R24, R172, gdesc[UR16].tnspB, RZ, !UPT"
ON_BLACKWELL = "UTCHMMA gdesc[UR20], gdesc[UR16], tmem[UR7], tmem[UR32], idesc[UR33], UPT"


@pytest.mark.parametrize(
    ("written", "instruction", "is_found"),
    [
        ((16, 17, 18, 19), FROM_MEMORY, False),
        ((18, 19), FROM_MEMORY, True),
        ((16, 17, 18), FROM_MEMORY, True),
        ((18, 19), FROM_REGISTERS, False),
        ((18, 19), FROM_REGISTERS.replace("R172", "R172.reuse"), False),
        ((16, 17), FROM_REGISTERS, True),
        ((16, 17, 18), FROM_REGISTERS, True),
        ((7, 16, 17, 20, 21, 32, 33), ON_BLACKWELL, False),
        ((7, 16, 17, 20, 32, 33), ON_BLACKWELL, True),
        ((7, 16, 20, 21, 32, 33), ON_BLACKWELL, True),
        ((7, 16, 17, 20, 21, 32), ON_BLACKWELL, True),
    ],
)
def test_a_product_reads_the_descriptors_of_its_factors_in_shared_memory(written, instruction, is_found):
    lines = [f"        /*{number:04x}*/                   UMOV UR{number}, 0x1 ;" for number in written]
    code = "\n".join([*lines, f"        /*0100*/                   {instruction} ;"])
    assert sass_checks.unwritten(code) == (instruction if is_found else "")


def test_each_function_has_registers_of_its_own(monkeypatch):
    """All are disassembled at once, one after the other."""
    length = 0x500
    moved = re.sub(r"/\*(\w+)\*/", lambda found: f"/*{int(found[1], 16) + length:04x}*/", GOOD)
    asked = []

    def told(tool, code, *options):
        asked.append((tool, len(code), options[-1]))
        return GOOD + moved.replace("UMOV UR32, 0x400", "NOP")

    monkeypatch.setattr(sass_checks, "_told", told)
    first, second = sass_checks.disassembled([bytes(length), bytes(length)], 90)
    assert asked == [("nvdisasm", 2 * length, "SM90a")]
    assert sass_checks.unwritten(first) == ""
    assert sass_checks.unwritten(second) == "ULEA UR32, UR4, UR32, 0x18"
