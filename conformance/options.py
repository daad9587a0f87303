"""The options of ``pytest conformance``, validated."""

from __future__ import annotations

import os
import random
import sys
import uuid
import zlib
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest

from conformance import (
    cases,
    corpus,
    database,
    journal,
    known_failures,
    profiles,
    runner,
    semantics,
    sequences,
    spec_files,
)
from conformance import spec as specs
from conformance.checks import CHECKS
from conformance.implementations import ImplementationError
from conformance.judge_main import Within
from conformance.names import unknown_name
from conformance.plain_calls import PLAIN, Pool
from conformance.profiles import PROFILES
from conformance.sequence_judge import SEQUENCE
from conformance.session import Run
from conformance.worker import Child


class Shard(NamedTuple):
    """One of several parts of a run, on a machine of its own. Which part an item is in follows from its name."""

    number: int
    count: int

    @classmethod
    def parsed(cls, text: str) -> Shard:
        """Return the shard that a text such as "1/4" names. Raises ValueError."""
        number, slash, count = text.partition("/")
        if not slash or not 1 <= int(number) <= int(count):
            raise ValueError(text)
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def has(self, item: pytest.Item) -> bool:
        """Tell whether an item is in this part, by its file's name and its own, which are the same everywhere."""
        return zlib.crc32(f"{item.path.name}::{item.name}".encode()) % self.count == self.number - 1


class Options:
    """The command line, validated. Raises pytest.UsageError, which names what is valid."""

    def __init__(self, config: pytest.Config) -> None:
        try:
            brought = spec_files.bring(config.getoption("--specs") or ())
            # A run in the same process after this one has specs of its own.
            config.add_cleanup(lambda: specs.forget(brought))
            known = specs.registry()
        except specs.SpecError as error:
            raise pytest.UsageError(str(error)) from None
        self.ops = _among("op", config.getoption("--op"), sorted(known))
        self.gone: list[str] = []
        """Messages about saved cases of ops that do not exist."""
        self.asked = self.ops if config.getoption("--op") else []
        """The ops that were named."""
        valid = list(dict.fromkeys(dtype for spec in known.values() for dtype in spec.dtypes))
        self.dtypes = _among("dtype", config.getoption("--dtype"), valid)
        self.checks = (
            _among("check", config.getoption("--check"), [*CHECKS, SEQUENCE, PLAIN])
            if config.getoption("--check")
            else None
        )
        self.sequences = self.checks is None or SEQUENCE in self.checks
        """Tell whether calls that follow one another are judged."""
        default = "ci" if os.environ.get("CI") else "smoke"
        self.profile = _among("profile", [config.getoption("--hypothesis-profile") or default], [*PROFILES])[0]
        self.implementation: str = config.getoption("--implementation")
        self.semantics = _among("semantics", [config.getoption(semantics.OPTION)], [*semantics.NAMES])[0]
        # This process draws and reports; its child refuses what the device has not.
        semantics.choose(self.semantics)
        folder = config.getoption("--corpus")
        if folder is not None and not folder.is_dir():
            raise pytest.UsageError(f"--corpus {folder}: not a folder")
        self.workloads: list[Path] = list(dict.fromkeys(config.getoption("--workload") or ()))
        for one in self.workloads:
            if not corpus.files([one]):
                raise pytest.UsageError(
                    f"--workload {one}: {'no saved case is there' if one.is_dir() else 'not a folder'}"
                )
        # Those first: a case that is also elsewhere is then judged as one of the workload.
        self.folders = [*self.workloads, *([folder] if folder else [corpus.SHIPPED, corpus.LARGE, corpus.FAILURES])]
        self.max_elements: int = config.getoption("--max-elements")
        self.save_to: Path = folder or corpus.FAILURES
        self.makes_folder = not self.save_to.exists()
        self.saved_before = frozenset(self.save_to.glob("*.json"))
        self.metrics: Path | None = config.getoption("--metrics")
        if self.metrics is not None and not self.metrics.absolute().parent.is_dir():
            raise pytest.UsageError(f"--metrics {self.metrics}: there is no folder {self.metrics.parent}")
        self.known, self.write_known = frozenset[known_failures.Entry](), config.getoption("--write-known-failures")
        if self.write_known is not None and not self.write_known.absolute().parent.is_dir():
            folder = self.write_known.parent
            raise pytest.UsageError(f"--write-known-failures {self.write_known}: there is no folder {folder}")
        if (file := config.getoption("--known-failures")) is not None:
            try:
                self.known = known_failures.read(file, self.implementation, list(CHECKS))
            except known_failures.KnownError as error:
                raise pytest.UsageError(f"--known-failures {error}") from None
        try:
            self.database = database.connect(config.getoption("--database") or ())
        except database.DatabaseError as error:
            raise pytest.UsageError(str(error)) from None
        examples = config.getoption("--max-examples")
        self.floor = self.profile == "ci" and not examples
        """Tell whether the coverage of an op that is judged whole has to reach its floor."""
        self.seed = _seed(config, self.profile)
        self.name: str = getattr(config, "workerinput", {}).get("conformance_name") or uuid.uuid4().hex
        """The name of the run, which its workers share."""
        self.shard: Shard | None = config.getoption("--shard")
        drawn_alike = config.getoption("--hypothesis-seed") is not None or PROFILES[self.profile].derandomize
        if self.shard is not None and not drawn_alike and not hasattr(config, "workerinput"):
            raise pytest.UsageError("--shard: say --hypothesis-seed, the same on every machine, or the profile ci")
        self.pairs = [(op, dtype) for op in self.ops for dtype in known[op].dtypes if dtype in self.dtypes]
        if not self.pairs:
            wanted = "; ".join(f"{op} takes {', '.join(known[op].dtypes)}" for op in self.ops)
            raise pytest.UsageError(f"no op that was asked for takes the dtypes that were asked for: {wanted}")
        self.drawn = [(op, dtype) for op, dtype in self.pairs if known[op].drawn]
        """Those of which calls are drawn."""
        self.settings = profiles.of_run(self.profile, len(self.drawn))
        if examples:
            self.settings = hypothesis.settings(self.settings, max_examples=examples)
        self.arguments = [
            *(part for name in specs.brought() for part in ("--specs", name)),
            *(part for op in self.ops for part in ("--op", op)),
            *(part for dtype in self.dtypes for part in ("--dtype", dtype)),
            *("--hypothesis-profile", self.profile, "--max-examples", str(self.settings.max_examples)),
            *("--hypothesis-seed", str(self.seed), semantics.OPTION, self.semantics),
        ]
        """The arguments that give a child the same options."""
        self.within = next((one for one in config.pluginmanager.get_plugins() if isinstance(one, Within)), None)
        """The plugin that marks pytest in the child itself; None elsewhere."""
        if self.within is None:
            limits = config.getoption("--case-timeout"), config.getoption("--import-timeout")
            device, number = config.getoption("--device"), _worker_number(config)
            # Before the child starts, which looks where this process does.
            corpus.find_data(self.folders)
            try:
                self.child = Child(self.implementation, device, number, self.checks, *limits, self.semantics)
            except (ImplementationError, runner.DeviceError) as error:
                raise pytest.UsageError(str(error)) from None

        self.pool = Pool()

    def run(self, written: journal.Journal | None = None) -> Run:
        """Return a ``Run`` with these options."""
        judged = self.within or self.child
        return Run(
            implementation=judged.implementation,
            device=judged.device,
            dtypes=self.dtypes,
            checks=self.checks,
            save_to=self.save_to,
            workloads=self.workloads,
            settings=self.settings,
            seed=self.seed,
            max_elements=self.max_elements,
            large=0 if self.within else self.child.about.large,
            child=None if self.within else self.child,
            journal=written,
            database=self.database,
            pool=self.pool,
            known=self.known,
        )

    def saved(self) -> list[Path]:
        """Return the saved cases of these ops and dtypes, each once; damaged files too, which fail when they are
        replayed."""
        found: dict[str, Path] = {}
        for path in corpus.files(self.folders):
            try:
                found_there = sequences.read(path, max_elements=sys.maxsize)
            except cases.UnknownOp as error:
                if not self.asked:
                    found[str(path)] = path
                    self.gone.append(str(error))
            except cases.CaseError:
                found[str(path)] = path
            else:
                if any(map(self._wanted, sequences.calls(found_there))):
                    found.setdefault(sequences.identity(found_there), path)
        return [*found.values()]

    def _wanted(self, case: cases.Case) -> bool:
        # Mixed-dtype cases count for each of their dtypes here: rather one replay too many.
        return case.op in self.ops and (
            any(spec.dtype in self.dtypes for spec in cases.operands(case)) or not cases.operands(case)
        )


def _among(what: str, named: list[str] | None, valid: list[str]) -> list[str]:
    """Return the given names, each once, or all valid ones where none was given. Raises pytest.UsageError."""
    for name in named or ():
        if name not in valid:
            raise pytest.UsageError(unknown_name(what, name, valid))
    return list(dict.fromkeys(named)) if named else valid


def _seed(config: pytest.Config, profile: str) -> int:
    """Return the seed of ``--hypothesis-seed``; else the controlling process's; else 0 where the profile is
    derandomized, and a random one elsewhere."""
    given = config.getoption("--hypothesis-seed")
    if given is not None:
        if not given.isdecimal():
            raise pytest.UsageError(f"--hypothesis-seed {given!r}: not a whole number")
        return int(given)
    if hasattr(config, "workerinput"):
        return config.workerinput["conformance_seed"]
    return 0 if PROFILES[profile].derandomize else random.SystemRandom().randrange(2**32)


def _worker_number(config: pytest.Config) -> int:
    return int(config.workerinput["workerid"].removeprefix("gw")) if hasattr(config, "workerinput") else 0
