"""A stopwatch that another process reads while it is started and stopped."""

import subprocess
import sys
from pathlib import Path

from conformance import stopwatch

RUNS = """
import sys
from conformance.stopwatch import Stopwatch

watch = Stopwatch(int(sys.argv[1]))
for _ in range(300_000):
    with watch.running():
        pass
"""


def test_what_ran_before_is_never_lost_for_a_moment(tmp_path):
    """A reader to whom it is lost takes it for new, and ends a case that has run for no time at all."""
    with (tmp_path / "time").open("w+b") as file:
        stopwatch.prepare(file)
        watch = stopwatch.Stopwatch(file.fileno())
        watch._numbers[0] = 1000.0
        command = [sys.executable, "-c", RUNS, str(file.fileno())]
        with subprocess.Popen(command, pass_fds=[file.fileno()], cwd=Path(__file__).parents[2]) as child:
            least, most = 1000.0, 1000.0
            while child.poll() is None:
                for _ in range(1000):
                    seconds = watch.seconds()
                    least, most = min(least, seconds), max(most, seconds)
        assert child.returncode == 0
        assert least >= 1000
        assert most <= watch.seconds() + 1
        assert not watch.is_running()
