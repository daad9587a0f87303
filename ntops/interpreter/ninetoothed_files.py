"""Files of NineToothed: a source folder that exists on any machine, and sources that are never half written."""

import hashlib
import importlib.util
import os
import pathlib
import tempfile

_CACHE_VARIABLE = "NTOPS_CACHE_DIR"


def prepare_ninetoothed(folder: str | os.PathLike | None = None) -> pathlib.Path | None:
    """Import NineToothed with a source cache that processes can share, and return its folder.

    Each source appears under its name complete or not at all. This works with and without a GPU.

    :param folder: The folder for sources; by default ``$NTOPS_CACHE_DIR``, else ``~/.ninetoothed``, else (no writable
        home) a folder of this user in the temporary directory.
    :return: The folder, or ``None`` where NineToothed is not installed.
    """
    if importlib.util.find_spec("ninetoothed") is None:
        return None

    folder = _folder(folder)
    generation = _import_generation(folder)
    generation.CACHE_DIR = folder
    generation.cache_source = _cache_source

    return folder


def _folder(folder):
    if folder is None:
        folder = os.environ.get(_CACHE_VARIABLE) or _default_folder()

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)

    return folder


def _default_folder():
    return _own_folder() or pathlib.Path(tempfile.gettempdir()) / f"ninetoothed-{os.getuid()}"


def _own_folder():
    """Return the folder that NineToothed makes while it is imported, or ``None`` if it cannot be made."""
    folder = pathlib.Path(os.path.expanduser("~")) / ".ninetoothed"

    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return None  # No such home, or a read-only one: containers and CI users often have none.

    return folder if os.access(folder, os.W_OK) else None


def _import_generation(folder):
    # NineToothed cannot be imported without its folder. The folder keeps its contents even if sources go elsewhere: the
    # processes in which it builds ahead of time import it without us, and write their C header there.
    actual_home = os.environ.get("HOME")

    if _own_folder() is None:
        os.environ["HOME"] = str(folder)

    try:
        import ninetoothed.generation
    finally:
        if actual_home is None:
            os.environ.pop("HOME", None)
        else:
            os.environ["HOME"] = actual_home

    return ninetoothed.generation


def _cache_source(source):
    path = source_path(hashlib.sha256(source.encode("utf-8")).hexdigest())
    write_source(path, source)
    return path


def source_path(name: str) -> pathlib.Path:
    """Return the path of a source with this name in NineToothed's folder."""
    from ninetoothed import generation

    return pathlib.Path(generation.CACHE_DIR) / f"{name}.py"


def write_source(path: pathlib.Path, source: str) -> None:
    """Write a source atomically, unless its file exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")

        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(source)

            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
