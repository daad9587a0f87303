"""A program that is forked ends and prints as one that is started."""

import os
import subprocess
import sys

import forked_python
import pytest

PROGRAMS = {
    "status": ["-c", "import sys; print('out'); print('error', file=sys.stderr); sys.exit(3)"],
    "message": ["-c", "raise SystemExit('why')"],
    "exception": ["-c", "1 / 0"],
    "arguments": [
        "-c",
        "import os, sys; print(sys.argv, sys.path[0], os.getcwd(), os.environ['PYTEST_G'])",
        "a",
        "b",
    ],
    "script": ["script.py", "a"],
    "module": ["-m", "script", "a"],
    "another": ["-c", f"import os; os.execv({sys.executable!r}, [{sys.executable!r}, 'script.py', 'a'])"],
    "end": ["-c", "import atexit; atexit.register(print, 'at the end')"],
}


@pytest.mark.parametrize("arguments", PROGRAMS.values(), ids=PROGRAMS)
def test_as_if_it_were_started(arguments, tmp_path):
    (tmp_path / "script.py").write_text("import sys\nprint(__name__, sys.argv[1:], sys.path[0])\n")
    # Of a name that is not imported from, so that no other server is started for it.
    command, env = [sys.executable, *arguments], {**os.environ, "PYTEST_G": "1"}
    started = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    forked = forked_python.run(command, cwd=tmp_path, env=env)
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    # A traceback has frames of the server as well.
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_a_program_that_never_ends_is_killed():
    with pytest.raises(subprocess.TimeoutExpired):
        forked_python.run([sys.executable, "-c", "while True: pass"], timeout=1)
