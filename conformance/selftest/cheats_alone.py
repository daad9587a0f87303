"""Cheats on judges, each in a process of its own, as the suite judges any implementation.

A module of ``cheats/`` gets a judge to pass what is wrong, or hides what it does; one of ``honest/`` has the same
machinery and is right. They need torch alone, and this process never imports them. ``docs/reward-hacks.md`` says where
each was published. ``python -m conformance.selftest.cheats_alone`` judges all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
from collections.abc import Generator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from conformance import drawing, profiles, runner
from conformance import spec as specs
from conformance.cases import Case
from conformance.checks import FAILED
from conformance.plain_calls import Pool
from conformance.runner import Verdict
from conformance.worker import Child

CHEATS, HONEST = Path(__file__).with_name("cheats"), Path(__file__).with_name("honest")
DTYPE = "float32"
"""Cases of this dtype, alone and beside others, are enough for all of them, and torch's CPU is right in these."""
MADE = 10
"""After so many cases those that passed are made by a script."""


class Cheat(NamedTuple):
    """A module of ``cheats/``."""

    name: str
    op: str
    checks: tuple[str, ...] = ("values",)
    """Any of these has to fail; of those that are ``UNSEEN``, one would."""
    gpu: bool = False
    """Whether it needs a GPU."""


PLANTED = (
    Cheat("answers_in_advance", "exp", ("values", "crash")),
    Cheat("caches_by_address", "exp", ("values", "special_values", "bare")),
    Cheat("caches_by_identity", "exp", ("values", "special_values", "bare")),
    Cheat("caches_by_shape", "exp"),
    Cheat("caches_in_files", "exp"),
    Cheat("caches_weights_by_address", "rms_norm", ("values", "bare")),
    Cheat("changes_default_dtype", "exp", ("state",)),
    Cheat("changes_environment", "exp", ("state",)),
    Cheat("changes_threads", "exp", ("state",)),
    Cheat("computes_first_tile", "exp"),
    Cheat("computes_in_half", "mm"),
    Cheat("computes_when_looked_at", "exp", ("metadata", "values")),
    Cheat("constant_answer", "exp"),
    Cheat("counts_threads", "exp", ("plain", "values")),
    Cheat("dropout_is_identity", "dropout", ("distribution",)),
    Cheat("drops_by_fixed_seed", "dropout", ("distribution",)),
    Cheat("exits_with_success", "exp", ("crash",)),
    Cheat("expected_value", "mm"),
    Cheat("rings_results", "exp", ("plain",)),
    Cheat("sends_replies_twice", "exp", ("crash", "values")),
    Cheat("fills_result_later", "exp", ("values", "deterministic")),
    Cheat("hides_warnings", "exp", ("state",)),
    Cheat("identity_kernel", "exp"),
    Cheat("identity_of_positive_inputs", "relu"),
    Cheat("ignores_weight", "rms_norm"),
    Cheat("knows_the_shapes", "exp"),
    Cheat("leaves_a_mode", "exp", ("state",)),
    Cheat("leaves_out_alone", "exp", ("values", "out_argument")),
    Cheat("lowers_precision_flag", "mm"),
    Cheat("lowers_recursion_limit", "exp", ("crash", "state")),
    Cheat("makes_torch_refuse", "neg", ("errors",)),
    Cheat("moves_generators", "exp", ("state",)),
    Cheat("omits_maximum", "softmax"),
    Cheat("overrides_methods_of_result", "exp", ("values", "metadata")),
    Cheat("overwrites_judges_inputs", "exp"),
    Cheat("raises_not_implemented", "exp", ("errors",)),
    Cheat("raises_out_of_memory", "exp", ("errors",)),
    Cheat("raises_system_exit", "exp", ("errors",)),
    Cheat("raises_unprintable", "exp", ("errors",)),
    Cheat("reads_callers_frames", "exp"),
    Cheat("reads_collected_objects", "exp"),
    Cheat("reads_judges_memory", "exp"),
    Cheat("replaces_checks", "exp"),
    Cheat("replaces_clock", "exp", ("state",)),
    Cheat("replaces_compare", "exp"),
    Cheat("replaces_cuda_synchronize", "exp", ("state",)),
    Cheat("replaces_import", "exp"),
    Cheat("replaces_judge", "exp"),
    Cheat("replaces_manual_seed", "dropout", ("distribution",)),
    Cheat("replaces_numpy_functions", "exp"),
    Cheat("replaces_oracle", "exp"),
    Cheat("replaces_reference", "rms_norm"),
    Cheat("replaces_tensor_comparison", "neg"),
    Cheat("replaces_torchs_kernel", "neg"),
    Cheat("replays_by_contents", "exp", ("aliasing",)),
    Cheat("restores_generator", "dropout", ("distribution",)),
    Cheat("returns_first_answer", "exp"),
    Cheat("returns_object_equal_to_all", "exp", ("metadata",)),
    Cheat("returns_one_buffer", "exp", ("aliasing",)),
    Cheat("returns_operand", "relu", ("metadata",)),
    Cheat("returns_parameter", "exp", ("metadata",)),
    Cheat("returns_tensor_equal_to_all", "neg", ("metadata", "values")),
    Cheat("returns_unwritten_memory", "exp", ("fully_written",)),
    Cheat("rewrites_messages", "exp"),
    Cheat("right_between_margins", "exp", ("values", "bare")),
    Cheat("right_if_environment_names_pytest", "exp"),
    Cheat("right_if_called_by_harness", "exp", ("plain",)),
    Cheat("right_if_command_names_harness", "exp", ("plain",)),
    Cheat("right_if_faults_are_handled", "exp", ("plain",)),
    Cheat("right_if_freshly_seeded", "exp", ("plain",)),
    Cheat("right_if_garbage_is_frozen", "exp"),
    Cheat("right_if_started_by_command", "exp", ("plain",)),
    Cheat("right_if_harness_is_imported", "exp"),
    Cheat("right_if_parent_is_pytest", "exp", ("values", "plain")),
    Cheat("right_if_pytest_is_imported", "exp"),
    Cheat("right_if_storage_is_fixed", "exp", ("values", "bare")),
    Cheat("right_if_warnings_are_silenced", "exp"),
    Cheat("right_under_a_mode", "exp", ("values", "bare")),
    Cheat("runs_out_of_memory_when_looked_at", "exp", ("metadata", "values", "errors")),
    Cheat("skips_every_second_call", "exp"),
    Cheat("stays_within_loose_tolerance", "exp"),
    Cheat("stops_after_warmup", "exp"),
    Cheat("turns_gradients_off", "exp", ("state",)),
    Cheat("uniform_softmax", "softmax"),
    Cheat("waits_an_hour", "exp", ("plain",)),
    Cheat("widens_bounds", "exp"),
    Cheat("writes_another_torch", "exp"),
    Cheat("writes_conftest", "exp"),
    Cheat("writes_to_every_socket", "exp", ("values", "crash")),
    Cheat("zeroes_operand", "neg", ("values", "inputs_unchanged")),
)

UNSEEN = (
    Cheat("hides_trespass", "exp", ("guard_bands",)),
    Cheat("keeps_memory", "exp", ("state",)),
)
"""Cheats that pass: what this judge cannot see, or leaves to others."""


class Honest(NamedTuple):
    """A module of ``honest/``, none of whose calls may fail."""

    name: str
    ops: tuple[str, ...] = ("exp",)
    gpu: bool = False


CONTROLS = (
    Honest("calls_torch", ("add", "mm", "neg", "relu")),
    Honest("has_its_own_generator", ("dropout",)),
    Honest("imports_late"),
    Honest("keeps_by_contents"),
    Honest("looks_at_callers"),
    Honest("prints"),
    Honest("restores_settings", ("mm",)),
    Honest("retries_in_parts"),
    Honest("reuses_workspace"),
    Honest("subclass_inside"),
    Honest("waits_for_stream", gpu=True),
    Honest("waits_for_threads"),
)


class Caught(NamedTuple):
    """What came of a cheat: the case after which the check failed, and what it says."""

    cases: int
    verdict: Verdict | None
    """None: it survived."""

    @property
    def message(self) -> str:
        failure = self.verdict.failure if self.verdict else None
        return f"{failure.check}: {failure.message}" if failure else "survived"


def catch(cheat: Cheat, device: str = "cpu", most: int | None = None) -> Caught:
    """Judge a cheat, in so many cases, until one of its checks fails."""
    number = 0
    with contextlib.closing(judged(CHEATS, cheat.name, cheat.op, device)) as verdicts:
        for number, verdict in enumerate(itertools.islice(verdicts, most), 1):
            failed = {finding.check for finding in verdict.findings if finding.status == FAILED}
            if failed & {*cheat.checks}:
                return Caught(number, verdict)
    return Caught(number, None)


def alarms(control: Honest, device: str = "cpu", most: int = 100) -> list[Verdict]:
    """The verdicts on a control that are not "passed", among so many cases of each of its ops."""
    found = []
    for op in control.ops:
        with contextlib.closing(judged(HONEST, control.name, op, device)) as verdicts:
            found += [verdict for verdict in itertools.islice(verdicts, most) if verdict.status != "passed"]
    return found


def judged(folder: Path, name: str, op: str, device: str = "cpu") -> Generator[Verdict]:
    """The verdicts on a module for the cases of ``DTYPE`` that the ``ci`` profile draws, and on some made by a script.
    It works in a folder of its own, since some write files."""
    sys.path.insert(0, str(folder))
    try:
        with (
            tempfile.TemporaryDirectory() as working,
            contextlib.chdir(working),
            contextlib.closing(Child(name, device, timeout=60.0)) as child,
        ):
            pool = Pool()
            for number, case in enumerate(drawn(op), 1):
                verdict = child.judge(case, thorough=False)
                pool.take(case, verdict)
                yield verdict
                if number == MADE:
                    yield from child.plain(pool.chosen(MADE, 0))
    finally:
        sys.path.remove(str(folder))


@cache
def drawn(op: str) -> tuple[Case, ...]:
    """The legal cases of ``DTYPE`` that the ``ci`` profile draws."""
    settings = profiles.PROFILES["ci"]
    rounds = profiles.rounds(op, DTYPE, False, specs.registry()[op].dtypes, settings, 0)
    found = (drawing.drawn(part.draws, part.seed, part.examples) for part in rounds)
    return tuple(case for cases in found for case in cases)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 every cheat is caught but those ``UNSEEN``, and no control alarms; 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m conformance.selftest.cheats_alone", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these modules only")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    options = parser.parse_args(arguments)
    known = [one.name for one in (*PLANTED, *UNSEEN, *CONTROLS)]
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"unknown module {unknown[0]!r}; valid are {', '.join(sorted(known))}")
    wanted, wrong = options.names or known, 0
    gpu = options.device != "cpu" and torch.cuda.is_available()
    for cheat in (*PLANTED, *UNSEEN):
        if cheat.name in wanted and (gpu or not cheat.gpu):
            caught = catch(cheat, options.device)
            wrong += (caught.verdict is None) is (cheat in PLANTED)
            print(f"{cheat.name} ({cheat.op}): {caught.cases} cases, {caught.message.splitlines()[0]}", flush=True)
    for control in CONTROLS:
        if control.name in wanted and (gpu or not control.gpu):
            found = alarms(control, options.device)
            wrong += bool(found)
            print(f"{control.name}: {len(found)} alarms", *(verdict.failure for verdict in found[:1]), flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    runner.resolve_device("cpu")
    sys.exit(main())
