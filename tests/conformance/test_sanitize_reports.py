"""What sanitizers print is read."""

import pytest
from sanitizer_output import CLEAN, CLEAN_RACECHECK, CONSAN, INITCHECK, MEMCHECK, RACECHECK, SYNCCHECK

from conformance.sanitize import reports
from conformance.sanitize.reports import Finding

READ = {
    "memcheck": (MEMCHECK, 28, Finding("Invalid __global__ read of size 4 bytes", "add_kernel", "element_wise.py:32")),
    "racecheck": (
        RACECHECK,
        2,
        Finding(
            "Race reported between Read access at multiply+0x1230 in mm_hopper.py:196", "multiply", "mm_hopper.py:196"
        ),
    ),
    "initcheck": (
        INITCHECK,
        1,
        Finding(
            "Uninitialized __global__ memory read of size 16 bytes", "void at::native::copy_kernel<float>(T1, int)"
        ),
    ),
    "synccheck": (
        SYNCCHECK,
        1,
        Finding("Barrier error detected. Divergent thread(s) in block.", "attention", "barriers.py:5"),
    ),
    "consan": (
        CONSAN,
        1,
        Finding("Buffer being accessed has outstanding writes.", "multiply", "mm_hopper.py:196"),
    ),
}


@pytest.mark.parametrize("tool", READ)
def test_what_a_tool_prints_is_read(tool):
    text, count, first = READ[tool]
    report = reports.read(tool, text)
    assert (report.count, report.findings[0], report.unusable) == (count, first, "")


def test_what_a_tool_cannot_track_is_a_note_and_a_warning_of_a_race_is_a_finding():
    report = reports.read("racecheck", RACECHECK)
    assert len(report.findings) == 2
    assert report.notes == (
        "Detected overflow of tracked cuda::barrier structures. Results might be incorrect. Try using "
        "--num-cuda-barriers to fix the issue",
    )


@pytest.mark.parametrize(
    ("line", "kernel", "place"),
    [
        ("at 0x2570 in /root/triton/03-matmul.py:223:matmul_kernel", "matmul_kernel", "03-matmul.py:223"),
        ("at 0x68 in sgemm_32x32x32_NT_vec", "sgemm_32x32x32_NT_vec", ""),
        ("at void f<int>(int *, T1)+0x70 in /srv/a b/f.cu:9", "void f<int>(int *, T1)", "f.cu:9"),
    ],
)
def test_places_are_written_in_several_ways(line, kernel, place):
    what = "Invalid __shared__ read of size 4 bytes"
    text = f"========= {what}\n=========     {line}\n========= ERROR SUMMARY: 1 error\n"
    assert reports.read("memcheck", text).findings == (Finding(what, kernel, place),)


@pytest.mark.parametrize(("tool", "text"), [("memcheck", CLEAN), ("racecheck", CLEAN_RACECHECK), ("consan", "fine\n")])
def test_a_clean_report_has_no_findings(tool, text):
    assert reports.read(tool, text) == reports.Report(0, (), (), "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 4 bytes\n", "ended without a summary"),
        ("", "ended without a summary"),
        ('========= Error: Device not supported. Please refer to the "Supported Devices" section\n', "Device not sup"),
        ("========= Internal Sanitizer Error: The Sanitizer encountered an error\n" + CLEAN, "Internal Sanitizer"),
    ],
)
def test_a_report_that_says_nothing_is_not_clean(text, why):
    assert why in reports.read("memcheck", text).unusable
