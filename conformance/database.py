"""Failing examples shared between machines, by Hypothesis's own databases: a folder, a Redis server, or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)

READ_ONLY = "readonly:"
REDIS = ("redis://", "rediss://", "unix://")
ANSWER = 60.0
"""Seconds in which a Redis server has to answer."""


class DatabaseError(ValueError):
    """A database that cannot be used. The message is for people."""


def connect(names: Sequence[str]) -> ExampleDatabase | None:
    """Return the database of those names, all at once where there are several; None where no name is given.

    A name is a folder, or the URL of a Redis server (redis://, rediss://, unix://); after "readonly:" nothing is
    written to it. Raises DatabaseError.
    """
    found = [_one(name) for name in names]
    return MultiplexedDatabase(*found) if len(found) > 1 else next(iter(found), None)


class Search(ExampleDatabase):
    """The part of a database that one search uses.

    Hypothesis's key is the source of the test function, which is one and the same for all ops.
    """

    def __init__(self, database: ExampleDatabase, name: str) -> None:
        super().__init__()
        self._database, self._name = database, name.encode() + b":"

    def save(self, key: bytes, value: bytes) -> None:
        self._database.save(self._name + key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self._database.fetch(self._name + key)

    def delete(self, key: bytes, value: bytes) -> None:
        self._database.delete(self._name + key, value)


def _one(name: str) -> ExampleDatabase:
    if name.startswith(READ_ONLY):
        return ReadOnlyDatabase(_one(name.removeprefix(READ_ONLY)))
    if name.startswith(REDIS):
        return _redis(name)
    if "://" in name:
        raise DatabaseError(f"database {name!r}: valid are a folder, {', '.join(REDIS)}, and {READ_ONLY}DATABASE")
    folder = Path(name)
    if not folder.is_dir():
        raise DatabaseError(f"database {name!r}: not a folder")
    return DirectoryBasedExampleDatabase(folder)


def _redis(url: str) -> ExampleDatabase:
    try:
        import redis
        from hypothesis.extra.redis import RedisExampleDatabase
    except ImportError:
        raise DatabaseError(f"database {url!r}: needs the package redis: pip install 'ntops[redis]'") from None
    try:
        server = redis.Redis.from_url(url, socket_timeout=ANSWER, socket_connect_timeout=ANSWER)
        server.ping()
    except (redis.RedisError, ValueError) as error:
        raise DatabaseError(f"database {url!r}: {error}") from None
    return RedisExampleDatabase(server, key_prefix=b"ntops-conformance:")
