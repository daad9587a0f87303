"""Elements of tensors that files hold: ``<digest>.safetensors``, one tensor each, found by their digest.

Where they are looked for is a variable of the environment, so that processes that are started look there, too.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import torch

FOLDERS = "CONFORMANCE_DATA"
"""The variable: folders, separated as those of PATH."""
SUFFIX = ".safetensors"
_NAME, _HEADER = "elements", 1 << 12
"""The tensor's name in the file, and more bytes than the file has beside the tensor's."""


class StoredError(ValueError):
    """A file of elements that cannot be read or written. The message is for people."""


def look_in(folder: Path) -> None:
    """Look for files in a folder, too, in this process and in those that it starts from now on."""
    known = [one for one in os.environ.get(FOLDERS, "").split(os.pathsep) if one]
    if (path := str(folder.resolve())) not in known:
        os.environ[FOLDERS] = os.pathsep.join((path, *known))


def find(digest: str) -> Path:
    """The file of a digest. Raises StoredError."""
    for folder in os.environ.get(FOLDERS, "").split(os.pathsep):
        if folder and (path := Path(folder, digest + SUFFIX)).is_file():
            return path
    raise StoredError(f"{digest}{SUFFIX}, which holds elements of a tensor, is not beside the case")


def read(digest: str, most: int | None = None) -> torch.Tensor:
    """The tensor in the file of a digest, which is not compared with it.

    Raises StoredError, also where the file has more than ``most`` bytes beside its header."""
    from_file, path = library().safe_open, find(digest)
    if most is not None and path.stat().st_size > most + _HEADER:
        raise StoredError(f"{path}: holds more than the {most} bytes of the tensor")
    try:
        with from_file(path, "pt") as file:
            return file.get_tensor(_NAME)
    # safetensors has an exception of its own, and raises others.
    except Exception as error:  # noqa: BLE001
        raise StoredError(f"{path}: cannot be read: {error}") from None


def write(digest: str, tensor: torch.Tensor, folder: Path) -> Path:
    """Save a tensor under its digest, and return where. Raises StoredError."""
    library()
    from safetensors.torch import save

    path = folder / (digest + SUFFIX)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_bytes(save({_NAME: tensor}))
        part.replace(path)
    return path


def library() -> ModuleType:
    """safetensors. Raises StoredError: it is not installed."""
    try:
        import safetensors
    except ImportError:
        raise StoredError("cases with data need safetensors: pip install 'ntops[shadow]'") from None
    return safetensors
