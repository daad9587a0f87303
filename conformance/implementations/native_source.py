"""Functions of a CUDA or C++ file, with torch's signatures: ``native("gelu.cu", "gelu(Tensor input) -> Tensor")``.

A module that has such functions under the names of ops is an implementation. The file is built when the module is
imported, by ``torch.utils.cpp_extension``, and a built one is kept until the file or the signature changes.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from conformance.implementations import NotProvided

CUDA, CPP = ".cu", (".cpp", ".cc")
TYPES = {
    "Tensor": "const at::Tensor&",
    "Optional[Tensor]": "const std::optional<at::Tensor>&",
    "int": "int64_t",
    "Optional[int]": "std::optional<int64_t>",
    "float": "double",
    "Optional[float]": "std::optional<double>",
    "bool": "bool",
    "str": "const std::string&",
    "List[int]": "const std::vector<int64_t>&",
}
"""C++ types of parameters, by those of a schema."""
SHOWN = 5
"""The most lines of a compiler's errors that are shown."""


class NativeError(ImportError):
    """A file that cannot be built, or a signature that is none. The message is for people."""


def native(file: str, signature: str, function: str = "", flags: Sequence[str] = ("-O3",)) -> Callable[..., Any]:
    """Build a file, and return its function with the signature.

    :param file: A path ``*.cu`` or ``*.cpp``, from the folder of the module that calls this. It defines the function in
        no namespace; the parameters have the types of ``TYPES``.
    :param signature: As PyTorch writes schemas: ``gelu(Tensor input, *, str approximate="none") -> Tensor``.
    :param function: The name of the C++ function, where it is another one.
    :param flags: Options of the compiler.
    :raises NativeError: There is no such file, the signature is none, the file cannot be built, or a CUDA file meets a
        machine without a GPU.
    """
    path = Path(sys._getframe(1).f_globals.get("__file__", "")).parent / file
    schema = _schema(signature)
    called = function or schema.name
    if not path.is_file():
        raise NativeError(f"{path}: there is no such file")
    if path.suffix != CUDA and path.suffix not in CPP:
        raise NativeError(f"{path}: a CUDA file ends in {CUDA}, a C++ file in {' or '.join(CPP)}")
    if path.suffix == CUDA and not torch.cuda.is_available():
        raise NativeError(f"{path}: a CUDA file is judged on a GPU, and torch finds none here")
    source = path.read_text()
    built = _built(path, source, declaration(signature, called), called, flags)
    found = _with_signature(getattr(built, called), schema)
    # The harness looks for the numbers of its code.
    vars(found)["source"] = source
    return found


def declaration(signature: str, function: str = "") -> str:
    """Return how C++ declares the function of a signature. Raises NativeError."""
    schema = _schema(signature)
    parameters = []
    for one in schema.arguments:
        if str(one.type) not in TYPES:
            raise NativeError(f"{signature}: {one.name} is of a type that is not among {', '.join(TYPES)}")
        parameters.append(f"{TYPES[str(one.type)]} {one.name}")
    if {str(one.type) for one in schema.returns} != {"Tensor"}:
        raise NativeError(f"{signature}: a function returns a Tensor, or several")
    several = ", ".join(["at::Tensor"] * len(schema.returns))
    returns = several if len(schema.returns) == 1 else f"std::tuple<{several}>"
    return f"{returns} {function or schema.name}({', '.join(parameters)});"


def _schema(signature: str) -> Any:
    try:
        return torch._C.parse_schema(signature)
    except RuntimeError as error:
        raise NativeError(f"{signature}: not a signature: {' '.join(str(error).split())}") from None


def _built(path: Path, source: str, declared: str, function: str, flags: Sequence[str]) -> Any:
    cuda = path.suffix == CUDA
    told = "\0".join((source, declared, *flags, torch.__version__))
    name = f"conformance_{path.stem}_{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    try:
        return cpp_extension.load_inline(
            name,
            # torch writes the binding to the C++ part, which has to know the function.
            cpp_sources=declared if cuda else source,
            cuda_sources=source if cuda else None,
            functions=[function],
            extra_cflags=[*flags],
            extra_cuda_cflags=[*flags],
            extra_include_paths=[str(path.parent.resolve())],
            with_cuda=cuda,
        )
    # The compilers' output is in a RuntimeError; what is missing is told by others.
    except (RuntimeError, OSError, ImportError) as error:
        lines = str(error).splitlines()
        wrong = [line for line in lines if "error" in line.lower() and not line.startswith("Error building")]
        raise NativeError(f"{path}: cannot be built: " + "\n".join((wrong or lines)[:SHOWN])) from None


def _with_signature(function: Callable[..., Any], schema: Any) -> Callable[..., Any]:
    """Return the function with defaults and keywords, which its binding has not.

    It raises NotProvided where the function raises NotImplementedError (TORCH_CHECK_NOT_IMPLEMENTED), or where an
    argument is given by a name that the signature has not; and TypeError as Python does.
    """
    parameters = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY if one.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=one.default_value if one.has_default_value() else inspect.Parameter.empty,
        )
        for one in schema.arguments
    ]
    signature = inspect.Signature(parameters)

    def call(*args: Any, **kwargs: Any) -> Any:
        if unknown := [name for name in kwargs if name not in signature.parameters]:
            raise NotProvided(f"{schema.name} has no {' and no '.join(unknown)}")
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            return function(*bound.arguments.values())
        except NotImplementedError as error:
            raise NotProvided(str(error).partition("\n")[0]) from None

    call.__name__ = schema.name
    vars(call)["__signature__"] = signature
    return call
