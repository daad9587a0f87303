"""The project's commands. `nox --list` shows them; README.md says what each is for.

Every session also runs with `--no-venv`: in the environment that nox itself is installed in, installing nothing.
Environments are reused and brought up to date; `-R` skips the latter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import nox

# pip, not uv: a machine may provide its torch wheel through pip's own configuration.
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "conformance", "tests"]

TRITONS = ("3.6.0", "3.7.1", "3.9.0")
CORES = os.cpu_count() or 1
WORKERS = min(CORES, 8)
# The last "-n" counts, so "-- -n 0" turns parallelism off. Messages are printed once, where CI is set too.
# A worker that has nothing left takes from the others: what is slow comes in groups.
PYTEST = ("-m", "pytest", "--force-short-summary", "-n", str(WORKERS), "--dist", "worksteal")
# A test that hangs fails with its stack, and the run goes on. The slowest takes a minute where CI is slow.
HANGS = ("--timeout", "600")
# Threads of small calls wait for one another longer than they compute, above all where workers use the cores already.
THREADS = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, CORES // WORKERS)))}
# Images of containers often set this. A run starts hundreds of processes, and each would compile every module anew.
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}

# Other x86 CPUs on this one: which code OpenBLAS, MKL, oneDNN, torch and NumPy choose. A machine ignores what it lacks.
CPUS = {
    "avx2": {
        "OPENBLAS_CORETYPE": "Haswell",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    },
    "sse4": {
        "OPENBLAS_CORETYPE": "Prescott",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    },
}


def install(session: nox.Session, extra: str) -> None:
    """Install this checkout, editable, with one of its extras, at the pinned versions."""
    if session.venv_backend != "none":
        session.install("-e", f".[{extra}]", "-c", "constraints.txt")


def python(session: nox.Session, *args: str, env: Mapping[str, str] | None = None) -> None:
    """Run the session's Python; without a virtual environment that is nox's own, not whatever PATH holds."""
    program = sys.executable if session.venv_backend == "none" else "python"
    session.run(program, *args, external="error", env={**BYTECODE, **(env or {})})


@nox.session
def conformance(session: nox.Session) -> None:
    """The gate: judge every operator against torch, on the GPU if there is one, else interpreted."""
    install(session, "conformance")
    python(session, *PYTEST, "conformance", *session.posargs, env=THREADS)


@nox.session
def cpus(session: nox.Session) -> None:
    """The gate as CPUs without AVX-512, and without AVX, give it: "-- --op mm" and so on, as conformance takes them."""
    install(session, "conformance")
    for name, setting in CPUS.items():
        session.log(f"as {name}: {' '.join(f'{key}={value!r}' for key, value in setting.items())}")
        python(session, *PYTEST, "conformance", "--device", "cpu", *session.posargs, env={**THREADS, **setting})


@nox.session
def tests(session: nox.Session) -> None:
    """The project's own tests."""
    install(session, "dev")
    python(session, *PYTEST, *HANGS, *(session.posargs or ["tests"]), env=THREADS)


@nox.session
def bench(session: nox.Session) -> None:
    """Every operator against torch and torch.compile; "-- first_call": what the first calls of new processes take;
    "-- harness" or "-- interpreter": how fast these are.

    The JSON goes to .benchmarks/, or where --benchmark-json says."""
    install(session, "conformance")
    folder = Path("conformance/benchmarks")
    suites = {path.stem.removeprefix("test_"): str(path) for path in folder.glob("test_*.py")}
    chosen = [suites[argument] for argument in session.posargs if argument in suites]
    others = [argument for argument in session.posargs if argument not in suites]
    # The suites of operators print a table of their own.
    own = {suites["ops"], suites["first_call"]}
    quiet = [] if chosen and own.isdisjoint(chosen) else ["--benchmark-quiet"]
    save = ["--benchmark-autosave", "--benchmark-save-data"]
    python(session, "-m", "pytest", *(chosen or [suites["ops"]]), "--benchmark-only", *quiet, *save, *others)


@nox.session
def compare(session: nox.Session) -> None:
    """Is NEW worse than BASE? nox -s compare -- BASE NEW; benchmarks or metrics, exit code 1 on a regression."""
    install(session, "conformance")
    python(session, "-m", "reports", "compare", *session.posargs)


@nox.session
def report(session: nox.Session) -> None:
    """Accuracy, speed and coverage as a page: nox -s report -- metrics.json bench.json; default: reports/results."""
    install(session, "conformance")
    python(session, "-m", "reports", "build", *session.posargs)


@nox.session
def reproduce(session: nox.Session) -> None:
    """Replay a saved case: nox -s reproduce -- CASE.json."""
    install(session, "conformance")
    python(session, "-m", "conformance", "reproduce", *session.posargs)


@nox.session
@nox.parametrize("triton", TRITONS)
def interpreter(session: nox.Session, triton: str) -> None:
    """The interpreter's own tests, on each supported Triton."""
    if session.venv_backend != "none":
        install(session, "conformance")
        # torch's wheel names one Triton exactly; what is used of torch here does not depend on it.
        session.install("--no-deps", f"triton=={triton}")
    elif triton != (installed := metadata.version("triton")):
        session.skip(f"Triton {installed} is installed, and without a virtual environment nothing is installed")
    python(session, *PYTEST, "tests/interpreter", *session.posargs, env=THREADS)


@nox.session
def compile(session: nox.Session) -> None:
    """Every kernel compiled for sm_80, sm_90, sm_100 and gfx942; needs no GPU. "-- --examples 1 --sample 4": a part."""
    install(session, "conformance")
    python(session, "-m", "conformance.compilation", *session.posargs)


@nox.session
def selftest(session: nox.Session) -> None:
    """Planted defects: how many the harness catches, and no false alarm of right implementations."""
    install(session, "conformance")
    python(session, "-m", "conformance.selftest", *session.posargs)


@nox.session
def sanitize(session: nox.Session) -> None:
    """Every operator's kernels under compute-sanitizer's memcheck, racecheck, initcheck and synccheck; needs a GPU."""
    install(session, "conformance")
    python(session, "-m", "conformance.sanitize", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, format and types."""
    install(session, "dev")
    python(session, "-m", "ruff", "check")
    python(session, "-m", "ruff", "format", "--check", "--diff")
    python(session, "-m", "ty", "check")
