"""Failing examples go from one run to the next through Hypothesis's databases, Redis among them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import hypothesis
import pytest
import torch
from hypothesis.database import ReadOnlyDatabase

from conformance import database
from conformance.implementations import load
from conformance.profiles import PROFILES
from conformance.session import Run


@pytest.fixture
def server(tmp_path) -> Iterator[str]:
    """The URL of a Redis server of this test's own."""
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on PATH")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        url = f"redis://127.0.0.1:{port}/0"
        # As long as it lives it may yet answer.
        while process.poll() is None:
            try:
                database.connect([url])
                break
            except database.DatabaseError:
                time.sleep(0.1)
        yield url
        process.terminate()


def failing(names: list[str], folder, seed: int, examples: int, op: str = "relu") -> list[str]:
    """Ids of the failing cases that a run finds."""
    settings = hypothesis.settings(PROFILES["ci"], max_examples=examples)
    judged = load("defects:nan_lost"), torch.device("cpu"), ("float32",), ["values"], folder, settings, seed
    report = Run(*judged, database=database.connect(names)).search(op, "float32")
    return [failure.id for record in report.tally.sorted() for failure in record.failures]


def shared(names: list[str], tmp_path) -> None:
    """What one run finds in many examples, the next finds in its first."""
    found = failing(names, tmp_path, 0, 60)
    assert len(found) == 1
    assert failing([], tmp_path, 1, 1) == []
    assert failing(names, tmp_path, 1, 1) == found
    assert failing([f"readonly:{name}" for name in names], tmp_path, 1, 1) == found
    assert failing(names, tmp_path, 1, 1, op="eq") == [], "other ops have their own"


def test_a_folder(tmp_path):
    (tmp_path / "examples").mkdir()
    shared([str(tmp_path / "examples")], tmp_path)


def test_redis(server, tmp_path):
    shared([server], tmp_path)


def test_several_at_once(server, tmp_path):
    (tmp_path / "examples").mkdir()
    both = [str(tmp_path / "examples"), server]
    found = failing(both, tmp_path, 0, 60)
    assert len(found) == 1
    for one in both:
        assert failing([one], tmp_path, 1, 1) == found


def test_nothing_is_written_to_what_is_read_only(tmp_path):
    assert isinstance(database.connect([f"readonly:{tmp_path}"]), ReadOnlyDatabase)
    (tmp_path / "examples").mkdir()
    failing([f"readonly:{tmp_path / 'examples'}"], tmp_path, 0, 60)
    assert not list((tmp_path / "examples").rglob("*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such", "database 'no_such': not a folder"),
        ("postgres://host", "valid are a folder, redis://, rediss://, unix://, and readonly:DATABASE"),
        ("redis://127.0.0.1:1/0", "database 'redis://127.0.0.1:1/0': Error .* connecting to 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_used_is_told(name, message):
    pytest.importorskip("redis")
    with pytest.raises(database.DatabaseError, match=message):
        database.connect([name])
