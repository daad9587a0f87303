"""What each sanitizer prints: of a defect, and of none."""

MEMCHECK = """\
========= COMPUTE-SANITIZER
a line of the program's own
========= Invalid __global__ read of size 4 bytes
=========     at add_kernel+0x1a0 in element_wise.py:32
=========     by thread (100,0,0) in block (0,0,0)
=========     Access at 0x7f3c7ec00190 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3c7ec00000 of size 400 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: launch [0x16a3] in launcher.so
=========
========= Invalid __global__ read of size 4 bytes
=========     at add_kernel+0x1a0 in element_wise.py:32
=========     by thread (101,0,0) in block (0,0,0)
=========
========= Target application returned an error
========= ERROR SUMMARY: 28 errors
========= ERROR SUMMARY: 26 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Warning: Detected overflow of tracked cuda::barrier structures. Results might be incorrect. Try using \
--num-cuda-barriers to fix the issue
========= Error: Race reported between Read access at multiply+0x1230 in mm_hopper.py:196
=========     and Write access at multiply+0x560 in mm_hopper.py:80 [8192 hazards]
=========     and Write access at multiply+0x7a0 in mm_hopper.py:86 [4096 hazards]
=========
========= Warning: Race reported between Write access at copy+0x20 in copy.py:3
=========     and Read access at copy+0x90 in copy.py:9 [1 hazard]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 16 bytes
=========     at void at::native::copy_kernel<float>(T1, int)+0x70
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000f0
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at wait_for+0x3c0 in barriers.py:5
=========     by thread (128,0,0) in block (0,0,0)
=========     Barrier is located at shared address 0x30408
=========         Device Frame: attention+0x11b0 in attention_hopper.py:71
=========
========= ERROR SUMMARY: 1 error
"""
CONSAN = """\
/srv/ntops/kernels/mm_hopper.py:196: multiply: block: [0,0,0], thread: [1,0,0] Assertion `Buffer being accessed has \
outstanding writes.` failed.
/srv/ntops/kernels/mm_hopper.py:196: multiply: block: [0,0,0], thread: [2,0,0] Assertion `Buffer being accessed has \
outstanding writes.` failed.
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
CLEAN_RACECHECK = (
    "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
)
