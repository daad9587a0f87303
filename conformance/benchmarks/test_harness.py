"""Measure how fast the harness judges: cases per second, by op. ``pytest conformance/benchmarks/test_harness.py``.

The same cases every time, all dtypes mixed. The options of conftest.py apply, so
``--implementation torch`` shows what the harness itself costs.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conformance import drawing, runner
from conformance import spec as specs
from conformance.session import Run

CASES = 20


@pytest.mark.parametrize("op", sorted(specs.registry()))
def test_cases_judged(op: str, run: Run, benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """Measure the time of judging one case, reference, oracle and all checks included; ``cases_per_second`` in the
    extra info."""
    if run.implementation.function(op) is None:
        pytest.skip(f"not provided by {run.implementation.name}: {op}")
    spec = specs.registry()[op]
    cases = drawing.drawn(spec.cases(spec.dtypes), 0, CASES)

    def judge() -> list[runner.Verdict]:
        return [run.judge(case) for case in cases]

    # Kernels are compiled in the warm-up round.
    verdicts = benchmark.pedantic(judge, rounds=3, warmup_rounds=1)
    assert {verdict.status for verdict in verdicts} <= {"passed", "deviation"}
    if benchmark.stats is None:  # --benchmark-disable
        return
    rate = len(cases) / benchmark.stats.stats.median
    benchmark.extra_info |= {"cases_per_second": round(rate, 1), "implementation": run.implementation.name}
    with capsys.disabled():
        print(f"\n{op}: {rate:.1f} cases judged per second")
