"""What is drawn is the same everywhere."""

import contextlib
import hashlib
import os
import subprocess
import sys

import hypothesis
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS

from conformance import drawing

DIGEST = """
import hashlib, sys
{before}
from conformance import cases, sequence_draws, sequences, session
from conformance.selftest import search
made = hashlib.sha256()
for op in ("pow", "softmax", "matmul"):
    for case in search.suite_cases(op, session.hypothesis.settings(max_examples=20)):
        made.update(cases.encode(case))
    for sequence in sequence_draws.drawn(op, ("float32", "float16"), 1, 0):
        made.update(sequences.encode(sequence))
print(made.hexdigest())
"""
LOADED = "\n".join(f"NUMBER_{n} = {n * 37 + 3}\nPART_{n} = {n}.21875" for n in range(64))


def digest(folder, before="", **environment):
    (folder / "somebody.py").write_text(LOADED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(folder)]), **environment}
    return subprocess.run(
        [sys.executable, "-c", DIGEST.format(before=before)],
        env=environment, cwd=folder, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def test_neither_other_modules_nor_hashes_nor_ci_change_what_is_drawn(tmp_path):
    plain = digest(tmp_path)
    assert len(plain.strip()) == 2 * hashlib.sha256().digest_size
    assert digest(tmp_path, "import somebody", PYTHONHASHSEED="31", CI="1") == plain


def test_hypothesis_is_left_as_it_was():
    own = AVAILABLE_PROVIDERS["hypothesis"]

    def failing(number):
        assert number < 5
        assert AVAILABLE_PROVIDERS["hypothesis"] is not own
        raise ValueError

    for draws in (st.integers(0, 4), st.integers(5, 6)):
        with contextlib.suppress(ValueError, AssertionError):
            drawing.run(failing, draws, 0, hypothesis.settings(drawing.settings(3), phases=[hypothesis.Phase.generate]))
        assert AVAILABLE_PROVIDERS["hypothesis"] is own
