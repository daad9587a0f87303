"""The example of docs/interpreter.md does what that page says."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks():
    return re.findall(r"^```(?:\w*)\n(.*?)^```", (ROOT / "docs" / "interpreter.md").read_text(), re.M | re.S)


def test_the_example(tmp_path):
    code, message = blocks()
    assert len([line for line in code.splitlines() if line]) <= 12

    def run():
        (tmp_path / "mine.py").write_text(code)
        return subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True)

    result = run()
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].replace(f"{tmp_path}/", "") == message.strip()

    code = code.replace("i <= n", "i < n")
    result = run()
    assert (result.returncode, result.stderr) == (0, "")
