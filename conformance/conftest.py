"""Options of ``pytest conformance``, and the hooks that run it."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest

from conformance import (
    cases,
    corpus,
    forkserver,
    interrupts,
    journal,
    known_failures,
    messages,
    runner,
    semantics,
    terminal,
)
from conformance.collector import Collector, op_of
from conformance.failure_causes import Failed
from conformance.implementations import DEFAULT, ImplementationError
from conformance.metrics import Tally
from conformance.options import Options, Shard
from conformance.profiles import PROFILES
from conformance.sequence_judge import SEQUENCE
from conformance.session import Run
from conformance.worker import CASE_TIMEOUT, IMPORT_LIMIT, seconds

# Benchmarks are not part of the gate; named on the command line they are collected all the same.
collect_ignore = ["benchmarks"]

for _name, _profile in PROFILES.items():
    hypothesis.settings.register_profile(_name, _profile)


_OPTIONS = pytest.StashKey[Options]()
_TALLY = pytest.StashKey[Tally]()
_FOUND = pytest.StashKey[list[str]]()
_TERMINAL = pytest.StashKey[terminal.Terminal]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("conformance", "Conformance to torch").addoption
    add("--op", action="append", metavar="NAME", help="judge this op only; repeatable")
    add("--dtype", action="append", metavar="NAME", help="draw this dtype only; repeatable")
    what = "what is judged: a module, module:object, or torch itself (default: %(default)s)"
    add("--implementation", default=DEFAULT, metavar="MODULE", help=what)
    others = "a module or file *.py with OpSpecs, judged as those of the package are; repeatable"
    add("--specs", action="append", metavar="MODULE", help=others)
    add("--device", default="auto", metavar="auto|cpu|cuda", help="default: a GPU if there is one")
    add(semantics.OPTION, default=semantics.CUDA, metavar="|".join(semantics.NAMES), help=semantics.HELP)
    add("--check", action="append", metavar="NAME", help="make this check only; repeatable")
    where = f"those of the package, and ./{corpus.FAILURES}, where failing cases are saved"
    saved = f"saved cases, replayed first; failing cases are saved there too (default: {where})"
    add("--corpus", type=Path, metavar="DIR", help=saved)
    real = "cases with their data, as conformance.shadow keeps them of a model; replayed, too, and left as they are"
    add("--workload", action="append", type=Path, metavar="DIR", help=f"{real}; repeatable")
    shared = "where failing examples are kept and tried first: a folder or redis://HOST/N, or either after readonly:"
    add("--database", action="append", metavar="URL", help=f"{shared}; repeatable (default: none)")
    add("--metrics", type=Path, metavar="FILE.json", help="write the counts and shares of the bound here")
    no_news = "failures that do not fail the run; written by --write-known-failures"
    add("--known-failures", type=Path, metavar="FILE.json", help=no_news)
    add("--write-known-failures", type=Path, metavar="FILE.json", help="write the failures of this run here")
    limit = "a case whose calls take longer has failed; 0 is no limit (default: %(default)g)"
    add("--case-timeout", type=seconds, default=CASE_TIMEOUT, metavar="SECONDS", help=limit)
    add("--import-timeout", type=seconds, metavar="SECONDS", help=IMPORT_LIMIT)
    most = "saved cases whose operands or result hold more elements are skipped (default: %(default)s)"
    add("--max-elements", type=_positive, default=cases.MAX_ELEMENTS, metavar="N", help=most)
    part = "take the I-th of N parts of the run, from 1; all N draw from one --hypothesis-seed"
    add("--shard", type=Shard.parsed, metavar="I/N", help=part)
    number = "legal cases for each op and dtype; a quarter as many refused ones (default: the profile's)"
    add("--max-examples", type=_positive, metavar="N", help=number)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    forkserver.join(getattr(config, "workerinput", {}).get("conformance_servers", ()))
    # First, so that an unknown --hypothesis-profile is told here and not by an internal error of Hypothesis's plugin.
    options = config.stash[_OPTIONS] = Options(config)
    config.stash[_TALLY] = Tally()
    interrupts.install()
    config.add_cleanup(interrupts.remove)
    processes = getattr(config.option, "numprocesses", None)
    if processes and not all(map(_is_text, (os.getcwd(), *sys.argv, *sys.path))):
        raise pytest.UsageError("pytest-xdist works only where the names of folders are UTF-8; use -n 0")
    # The child of a worker gets ready while tests are collected.
    if options.within is not None or hasattr(config, "workerinput"):
        return
    try:
        options.child.ready()
        (options.save_to / journal.FOLDER).mkdir(parents=True, exist_ok=True)
    except (runner.DeviceError, ImplementationError) as error:
        raise pytest.UsageError(str(error)) from None
    except OSError as error:
        raise pytest.UsageError(f"failing cases cannot be saved in {options.save_to}: {error.strerror}") from None
    config.stash[_FOUND] = [
        f"an earlier run of {options.implementation} was killed while it judged; {what}"
        for left in journal.recover(options.save_to, options.implementation)
        for what in corpus.keep_left(left, options.save_to)
    ]
    config.stash[_TERMINAL] = terminal.Terminal(config)
    config.pluginmanager.register(config.stash[_TERMINAL], "conformance-terminal")
    collector = Collector(options, config.stash[_TALLY], config.stash[_TERMINAL])
    config.pluginmanager.register(collector, "conformance-collector")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _OPTIONS in config.stash and config.stash[_OPTIONS].within is None:
        config.stash[_OPTIONS].child.close()
        semantics.choose(semantics.CUDA)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each worker of pytest-xdist the name and the seed of the whole run, and the servers that fork processes; it
    judges in a child of its own."""
    options = node.config.stash[_OPTIONS]
    node.workerinput |= {"conformance_name": options.name, "conformance_seed": options.seed}
    node.workerinput["conformance_servers"] = forkserver.share()
    options.child.close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    options = config.stash[_OPTIONS]
    if hasattr(config, "workerinput"):
        return []
    return [
        f"conformance: {options.implementation} on {options.child.about.device_name}, profile {options.profile}, "
        f"{options.settings.max_examples} cases for each op and dtype, --hypothesis-seed {options.seed}"
        + ("" if options.shard is None else f", shard {options.shard}")
        + messages.by_semantics(),
        *config.stash[_FOUND],
    ]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore ``test_<op>.py``, the further tests of one op, unless that op is judged."""
    op = op_of(collection_path)
    return True if op is not None and op not in config.stash[_OPTIONS].ops else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Free tests of whole ops of fixtures, since they run in the child, and deselect the items of other shards."""
    if config.stash[_OPTIONS].within is None:
        for item in items:
            if isinstance(item, pytest.Function) and op_of(item.path) is not None:
                item.fixturenames = []
    if (shard := config.stash[_OPTIONS].shard) is not None:
        others = [item for item in items if not shard.has(item) and not _is_own(item, config.stash[_OPTIONS])]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)


def _is_own(item: pytest.Item, options: Options) -> bool:
    """Tell whether it is a case that failed on this machine, which others do not have."""
    callspec = getattr(item, "callspec", None)
    saved = callspec.params.get("saved") if callspec is not None else None
    return isinstance(saved, Path) and saved.parent == corpus.FAILURES == options.save_to


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    # Imported and collected objects stay: the collector need not look through them again.
    gc.freeze()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    options = pyfuncitem.config.stash[_OPTIONS]
    if options.within is not None or op_of(pyfuncitem.path) is None:
        return None
    outcome, message = options.child.run([f"{pyfuncitem.path}::{pyfuncitem.name}", *options.arguments])
    print(options.child.output(), end="")
    if outcome == "skipped":
        pytest.skip(message.removeprefix("Skipped: "))
    if outcome != "passed":
        first = message.strip().rpartition("\n")[2]
        failure = Failed(f"{pyfuncitem.name}: {message}", op_of(pyfuncitem.path) or "", "", pyfuncitem.name)
        (failure,) = known_failures.marked([failure], options.known)
        pyfuncitem.user_properties.append((terminal.FAILURES, msgspec.json.encode([failure]).decode()))
        (pytest.xfail if failure.known else functools.partial(pytest.fail, pytrace=False))(first)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_logreport() -> Generator[None, None, None]:
    """Take a report whole, or send it: an interrupt comes before or after that."""
    interrupts.hold()
    try:
        yield
    finally:
        interrupts.release()


@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt() -> None:
    # Until the end of ``pytest_sessionfinish``.
    interrupts.hold()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """End in order: an interrupt comes after the table and the metrics are written, and has no more to end."""
    interrupts.hold()
    try:
        yield
    finally:
        if interrupts.came():
            session.exitstatus = pytest.ExitCode.INTERRUPTED


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Judge some cases once more by a script after the last item of a process."""
    options = item.config.stash[_OPTIONS]
    if nextitem is not None or options.within is not None:
        return
    failed = known_failures.marked(options.run().plain(), options.known)
    if failed:
        item.user_properties.append((terminal.AFTERWARDS, msgspec.json.encode(failed).decode()))
    if told := [failure.title for failure in failed if not failure.known]:
        pytest.fail("\n".join(told), pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module is None or metafunc.module.__name__.rpartition(".")[2] != "test_conformance":
        return
    options = metafunc.config.stash[_OPTIONS]
    if "saved" in metafunc.fixturenames:
        paths = options.saved()
        metafunc.parametrize("saved", paths, ids=list(map(corpus.name, paths)))
    elif "whole_op" in metafunc.fixturenames:
        metafunc.parametrize("whole_op", list(dict(options.drawn)) if options.sequences else [])
    else:
        # A run that asks only for sequences judges no single cases.
        metafunc.parametrize(("op", "dtype"), [] if options.checks == [SEQUENCE] else options.drawn)


@pytest.fixture(scope="session")
def run(pytestconfig: pytest.Config) -> Iterator[Run]:
    """Yield the ``Run`` of this session."""
    options = pytestconfig.stash[_OPTIONS]
    if options.within is not None:
        yield options.run()
        return
    worker = getattr(pytestconfig, "workerinput", {}).get("workerid", "main")
    header = journal.Header(options.implementation, worker, options.name)
    with contextlib.closing(journal.Journal(options.save_to, header)) as written:
        yield options.run(written)


def _is_text(name: str) -> bool:
    """Tell whether UTF-8 can hold it."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(text)
    return int(text)
