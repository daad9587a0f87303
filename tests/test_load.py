"""No test and no search depends on how busy the machine is: none has a deadline, reads a clock or ends what is slow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck

from conformance.profiles import PROFILES
from conformance.worker import CASE_TIMEOUT, DEATH, GRACE, START

ROOT = Path(__file__).parents[1]
FOLDERS = ("tests", "conformance", "strategies", "reports")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LEAST = 60.0
"""Seconds that a limit has at least, so that it ends nothing but what hangs."""
CLOCKS = {"perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "time_ns"}


def place(path: Path, node: ast.expr) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def parsed(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text()))


def keywords(path: Path, *names: str) -> Iterator[tuple[ast.keyword, ast.Call]]:
    for node in parsed(path):
        if isinstance(node, ast.Call):
            yield from ((keyword, node) for keyword in node.keywords if keyword.arg in names)


def is_settings(call: ast.Call) -> bool:
    called = call.func
    return "settings" in (getattr(called, "id", ""), getattr(called, "attr", ""))


@pytest.mark.parametrize("profile", ["tests", *PROFILES])
def test_no_profile_has_a_clock(profile):
    settings = hypothesis.settings.get_profile(profile) if profile == "tests" else PROFILES[profile]
    assert settings.deadline is None
    assert HealthCheck.too_slow in settings.suppress_health_check


def test_tests_have_the_profile_of_tests():
    @hypothesis.given(hypothesis.strategies.none())
    def test(nothing):
        pass

    settings = test._hypothesis_internal_use_settings
    assert settings.deadline is None
    assert HealthCheck.too_slow in settings.suppress_health_check


def test_settings_bring_no_clock_back():
    wrong = []
    for path in SOURCES:
        for keyword, call in keywords(path, "deadline", "suppress_health_check"):
            text = ast.unparse(keyword.value)
            right = text == "None" if keyword.arg == "deadline" else "too_slow" in text or text == "list(HealthCheck)"
            if is_settings(call) and not right:
                wrong.append(place(path, call))
    assert wrong == []


def test_searches_of_the_harness_say_that_they_have_no_clock():
    """Whatever the profile of those who call it is."""
    needed = {"deadline", "suppress_health_check"}
    assert [
        place(path, node)
        for path in sorted(set(SOURCES) - set(TESTS))
        for node in parsed(path)
        if isinstance(node, ast.Call) and is_settings(node) and not node.args
        if not needed <= {keyword.arg for keyword in node.keywords}
    ] == []


def test_tests_read_no_clock():
    assert [
        place(path, node)
        for path in TESTS
        for node in parsed(path)
        if isinstance(node, ast.Attribute) and (node.attr in CLOCKS or ast.unparse(node) == "time.time")
    ] == []


def expected_to_run_out(path: Path) -> set[int]:
    """Return the lines below ``with pytest.raises(subprocess.TimeoutExpired)``: the limit is what is tested there."""
    blocks = [node for node in parsed(path) if isinstance(node, ast.With)]
    raising = [block for block in blocks if "TimeoutExpired" in ast.unparse(block.items[0].context_expr)]
    return {line for block in raising for line in range(block.lineno, (block.end_lineno or 0) + 1)}


def test_limits_in_tests_end_only_what_hangs():
    wrong = []
    for path in TESTS:
        expected = expected_to_run_out(path)
        for keyword, call in keywords(path, "timeout"):
            if call.lineno in expected:
                continue
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if isinstance(value, int | float) and value < LEAST:
                wrong.append(place(path, call))
    assert wrong == []


def test_limits_of_judged_processes_are_for_hangs():
    assert min(CASE_TIMEOUT, START, GRACE, DEATH) >= LEAST
