"""Options of ``pytest conformance``, and what it prints and writes at the end."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
import torch

from conformance import cases, corpus, metrics, runner
from conformance import spec as specs
from conformance.checks import CHECKS
from conformance.implementations import DEFAULT, Implementation, ImplementationError, load
from conformance.metrics import Record, Tally
from conformance.session import PROFILES, Run

# Benchmarks are not part of the gate; named on the command line they are collected all the same.
collect_ignore = ["benchmarks"]

for _name, _profile in PROFILES.items():
    hypothesis.settings.register_profile(_name, _profile)


class Options:
    """The command line, validated. Raises pytest.UsageError, which names what is valid."""

    def __init__(self, config: pytest.Config) -> None:
        known = specs.registry()
        self.ops = _among("op", config.getoption("--op"), sorted(known))
        valid = list(dict.fromkeys(dtype for spec in known.values() for dtype in spec.dtypes))
        self.dtypes = _among("dtype", config.getoption("--dtype"), valid)
        self.checks = (
            _among("check", config.getoption("--check"), list(CHECKS)) if config.getoption("--check") else None
        )
        default = "ci" if os.environ.get("CI") else "smoke"
        self.profile = _among("profile", [config.getoption("--hypothesis-profile") or default], [*PROFILES])[0]
        try:
            self.device = runner.resolve_device(config.getoption("--device"), _worker_number(config))
            self.implementation: Implementation = load(config.getoption("--implementation"))
        except (runner.DeviceError, ImplementationError) as error:
            raise pytest.UsageError(str(error)) from None
        folder = config.getoption("--corpus")
        if folder is not None and not folder.is_dir():
            raise pytest.UsageError(f"--corpus {folder}: not a folder")
        self.folders = [folder] if folder else [corpus.SHIPPED, corpus.FAILURES]
        self.save_to = folder or corpus.FAILURES
        self.metrics: Path | None = config.getoption("--metrics")
        if self.metrics is not None and not self.metrics.absolute().parent.is_dir():
            raise pytest.UsageError(f"--metrics {self.metrics}: there is no folder {self.metrics.parent}")
        self.timeout = config.getoption("--case-timeout")
        self.settings = PROFILES[self.profile]
        if examples := config.getoption("--max-examples"):
            self.settings = hypothesis.settings(self.settings, max_examples=examples)
        self.seed = _seed(config, self.profile)
        self.pairs = [(op, dtype) for op in self.ops for dtype in known[op].dtypes if dtype in self.dtypes]
        if not self.pairs:
            wanted = "; ".join(f"{op} takes {', '.join(known[op].dtypes)}" for op in self.ops)
            raise pytest.UsageError(f"no op that was asked for takes the dtypes that were asked for: {wanted}")

    def saved(self) -> list[Path]:
        """Saved cases of these ops and dtypes; damaged files too, which fail when they are replayed."""
        return [path for path in corpus.files(self.folders) if self._wanted(path)]

    def _wanted(self, path: Path) -> bool:
        try:
            case = cases.read(path)
        except cases.CaseError:
            return True
        # Mixed-dtype cases count for each of their dtypes here: rather one replay too many.
        return case.op in self.ops and (
            any(spec.dtype in self.dtypes for spec in cases.operands(case)) or not cases.operands(case)
        )


_OPTIONS = pytest.StashKey[Options]()
_TALLY = pytest.StashKey[Tally]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("conformance", "Conformance to torch").addoption
    add("--op", action="append", metavar="NAME", help="judge this op only; repeatable")
    add("--dtype", action="append", metavar="NAME", help="draw this dtype only; repeatable")
    what = "what is judged: a module, module:object, or torch itself (default: %(default)s)"
    add("--implementation", default=DEFAULT, metavar="MODULE", help=what)
    add("--device", default="auto", metavar="auto|cpu|cuda", help="default: a GPU if there is one")
    add("--check", action="append", metavar="NAME", help="make this check only; repeatable")
    where = f"those of the package, and ./{corpus.FAILURES}, where failing cases are saved"
    saved = f"saved cases, replayed first; failing cases are saved there too (default: {where})"
    add("--corpus", type=Path, metavar="DIR", help=saved)
    add("--metrics", type=Path, metavar="FILE.json", help="write the counts and shares of the bound here")
    limit = "a case that takes longer has failed; 0 is no limit (default: %(default)g)"
    add("--case-timeout", type=_seconds, default=120.0, metavar="SECONDS", help=limit)
    number = "legal cases for each op and dtype; a quarter as many refused ones (default: the profile's)"
    add("--max-examples", type=_positive, metavar="N", help=number)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # First, so that an unknown --hypothesis-profile is told here and not by an internal error of Hypothesis's plugin.
    config.stash[_OPTIONS] = Options(config)
    config.stash[_TALLY] = Tally()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(config), "conformance-collector")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Every worker of pytest-xdist draws from the seed of the whole run."""
    node.workerinput["conformance_seed"] = node.config.stash[_OPTIONS].seed


def pytest_report_header(config: pytest.Config) -> str:
    options = config.stash[_OPTIONS]
    return (
        f"conformance: {options.implementation.name} on {_device_name(options.device)}, profile {options.profile}, "
        f"{options.settings.max_examples} cases for each op and dtype, --hypothesis-seed {options.seed}"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module is None or metafunc.module.__name__.rpartition(".")[2] != "test_conformance":
        return
    options = metafunc.config.stash[_OPTIONS]
    if "saved" in metafunc.fixturenames:
        paths = options.saved()
        metafunc.parametrize("saved", paths, ids=[path.stem for path in paths])
    else:
        metafunc.parametrize(("op", "dtype"), options.pairs)


@pytest.fixture(scope="session")
def run(pytestconfig: pytest.Config) -> Run:
    """What is judged, and how."""
    options = pytestconfig.stash[_OPTIONS]
    return Run(
        implementation=options.implementation,
        device=options.device,
        dtypes=options.dtypes,
        checks=options.checks,
        save_to=options.save_to,
        settings=options.settings,
        seed=options.seed,
        timeout=options.timeout,
        log=_stderr(pytestconfig),
    )


class _Collector:
    """Adds up what the items report, wherever they ran."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == "conformance":
                self.config.stash[_TALLY].merge(msgspec.json.decode(str(value), type=list[Record]))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        options, tally = self.config.stash[_OPTIONS], self.config.stash[_TALLY]
        if not tally.records:
            return
        terminalreporter.section(f"conformance of {options.implementation.name} on {_device_name(options.device)}")
        for line in metrics.table(tally.by_op()):
            terminalreporter.line(line)
        if options.metrics is not None:
            about = {
                "implementation": options.implementation.name,
                "device": str(options.device),
                "profile": options.profile,
                "max_examples": options.settings.max_examples,
                "seed": options.seed,
                "checks": list(options.checks or CHECKS),
            }
            corpus.write(options.metrics, metrics.document(tally.sorted(), about))
            terminalreporter.line(f"metrics written to {options.metrics}")


def _among(what: str, named: list[str] | None, valid: list[str]) -> list[str]:
    """The names that were given, without repetition, or all valid ones where none was."""
    for name in named or ():
        if name not in valid:
            raise pytest.UsageError(f"unknown {what} {name!r}; valid are {', '.join(valid)}")
    return list(dict.fromkeys(named)) if named else valid


def _seed(config: pytest.Config, profile: str) -> int:
    """That of ``--hypothesis-seed``; else that of the controlling process; else 0 where the profile is derandomized."""
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


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _stderr(config: pytest.Config) -> int | None:
    """The terminal's stderr, which pytest's own faulthandler plugin keeps while output is captured."""
    try:
        from _pytest.faulthandler import fault_handler_stderr_fd_key
    except ImportError:
        return None
    return config.stash.get(fault_handler_stderr_fd_key, None)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(text)
    return int(text)


def _seconds(text: str) -> float:
    if not 0 <= float(text) < float("inf"):
        raise ValueError(text)
    return float(text)
