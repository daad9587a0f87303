"""What is drawn is the same everywhere."""

import contextlib
import hashlib
import os
import subprocess
import sys

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.strategies._internal import core

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


@pytest.mark.slow
def test_neither_other_modules_nor_hashes_nor_ci_change_what_is_drawn(tmp_path):
    plain = digest(tmp_path)
    assert len(plain.strip()) == 2 * hashlib.sha256().digest_size
    assert digest(tmp_path, "import somebody", PYTHONHASHSEED="31", CI="1") == plain


def test_hypothesis_is_left_as_it_was():
    own, seen = (providers._get_local_constants, providers.CONSTANTS_CACHE), []

    def failing(number):
        seen.append((providers._get_local_constants, providers.CONSTANTS_CACHE))
        assert number < 5
        raise ValueError

    for draws in (st.integers(0, 4), st.integers(5, 6)):
        with contextlib.suppress(ValueError, AssertionError):
            drawing.run(failing, draws, 0, hypothesis.settings(drawing.settings(3), phases=[hypothesis.Phase.generate]))
        assert own == (providers._get_local_constants, providers.CONSTANTS_CACHE)
    assert len({cache for _, cache in seen} | {own[1]}) == 2
    assert all(not len(constants()) for constants, _ in seen)
    reads = core.is_first_param_referenced_in_function
    with contextlib.suppress(ValueError), drawing.unread():
        assert core.is_first_param_referenced_in_function is not reads
        raise ValueError
    assert core.is_first_param_referenced_in_function is reads


@pytest.mark.slow
def test_what_is_tried_while_a_failure_shrinks_is_no_constant_of_a_module_either(monkeypatch):
    constant, seen = 777_777, []
    monkeypatch.setattr(providers, "_get_local_constants", lambda: providers.Constants(integers={constant}))

    def failing(numbers):
        seen.extend(numbers)
        assert sum(numbers) < 1 << 20

    for seed in range(60):
        # Other bounds each time: what was permitted for them once is kept.
        draws = st.integers(1, 3).flatmap(lambda n, seed=seed: st.lists(st.integers(0, (1 << 20) + seed), min_size=n))
        with contextlib.suppress(AssertionError):
            drawing.run(failing, draws, seed, drawing.settings(10))
    assert len(seen) > 3000
    assert constant not in seen
