"""Kernels: made once for each configuration, specialised as little as speed allows, and the library's defaults."""

import ast
import contextlib
import dataclasses
import functools
import pathlib
import sys
import threading

import ninetoothed
import sympy
import triton
from ninetoothed import generation, naming
from ninetoothed.jit import import_from_path

import ntops
from ntops.host import files, repetition
from ntops.interpreter.nine import source_path, write_source

_defaults = {"num_warps": None, "num_stages": None, "max_num_configs": None}
_kernels = {}
_lock = threading.RLock()


def set_default_num_warps(num_warps):
    """Set the number of warps of kernels called from now on, a power of two up to 32; ``None``: the library's choice.

    The forms of products and attention for Hopper, whose warps have tasks of their own, are not taken then.
    """
    if type(num_warps) is int and num_warps > 0 and (num_warps > 32 or num_warps & (num_warps - 1)):
        raise ValueError(f"num_warps must be a power of two up to 32 or None, not {num_warps}")

    _set_default("num_warps", num_warps)


def set_default_num_stages(num_stages):
    """Set the number of pipeline stages of kernels called from now on; ``None``: the library's choice.

    A kernel that has not the shared memory for so many has as many as fit. The forms of products and attention for
    Hopper, whose stages are part of their tiles, are not taken then.
    """
    _set_default("num_stages", num_stages)


def set_default_max_num_configs(max_num_configs):
    """Measure up to this many configurations at the first call for each new shape, and take the fastest from then on.

    They are the library's choice and others that are right for the call. ``None`` or 1: the library's choice, and
    nothing is measured; so under the interpreter and while a CUDA graph is captured. The fastest one is measured into
    memory of its own, as large as the output: a call writes what it is given once.
    """
    _set_default("max_num_configs", max_num_configs)


def get_default_num_warps():
    """The number of warps set by :func:`set_default_num_warps`, or ``None``."""
    return _defaults["num_warps"]


def get_default_num_stages():
    """The number of pipeline stages set by :func:`set_default_num_stages`, or ``None``."""
    return _defaults["num_stages"]


def get_default_max_num_configs():
    """The number of configurations set by :func:`set_default_max_num_configs`, or ``None``."""
    return _defaults["max_num_configs"]


def _set_default(name, value):
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"{name} must be a positive integer or None, not {value!r}")

    _defaults[name] = value
    repetition.forget()


@dataclasses.dataclass(frozen=True)
class Specialization:
    """What of a call's geometry is compiled into a kernel: as little as speed allows, and no size that is not a tile's.

    :param unit_strides: The (tensor name, dim) whose stride is 1.
    :param aligned: Whether all pointers and strides, and the sizes of dims with a unit stride, are multiples of 16.
    :param wide: Whether offsets need 64 bits.
    :param filled: The (tensor name, dim) whose size is that of a tile, so that nothing has to be masked along it.
    """

    unit_strides: tuple[tuple[str, int], ...] = ()
    aligned: bool = False
    wide: bool = False
    filled: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Config:
    """The choice of a kernel's configuration: block sizes by the name that ``premake`` gives them."""

    blocks: tuple[tuple[str, int | tuple[int, ...]], ...]
    num_warps: int = 4
    num_stages: int = 1


def make(premake, arguments, config, specialization):
    """The kernel that ``premake(**arguments)`` describes, from the cache if it has been made before.

    :param premake: The ``premake`` of a module of ``ntops.kernels``.
    :param arguments: Its arguments other than block sizes; the values are hashable.
    :param config: The library's choice, over which the defaults that a user has set take precedence.
    :param specialization: What is known about the geometry of the call.
    """
    num_warps = _defaults["num_warps"] or config.num_warps
    num_stages = _defaults["num_stages"] or config.num_stages
    key = (premake, tuple(arguments.items()), config.blocks, num_warps, num_stages, specialization)
    kernel = _kernels.get(key)

    if kernel is not None:
        return kernel

    # NineToothed keeps the types of a kernel in annotations of the application, which threads share.
    with _lock:
        if key not in _kernels:
            name = f"ntops_{premake.__module__.rpartition('.')[2]}"
            path = str(_source(name, key))
            _kernels[key] = getattr(import_from_path(path, path), f"launch_{name}")

        return _kernels[key]


def _source(name, key):
    """The file of a kernel's source: that of an earlier process, where it was made from the same code."""
    premake, arguments, *_, specialization = key
    path = None

    # Of another's premake nobody knows which files it comes from.
    if premake.__module__.startswith("ntops.kernels.") and _is_unchanged():
        described = premake.__module__, premake.__qualname__, key[1:], _CODE
        path = source_path(files.digest(repr(described)))

        if path.exists():
            return path

    scalar_types = dict(dict(arguments).get("scalars") or ())
    source = _specialize(_generated(name, *key[:-1]), name, scalar_types, specialization)

    # NineToothed reads the file of an application, which may have been edited meanwhile.
    if path is None or not _is_unchanged():
        return generation.cache_source(source)

    write_source(path, source)
    return path


def _folders():
    return [pathlib.Path(module.__file__).parent for module in (ntops, ninetoothed)]


def _is_unchanged():
    """Whether files are still those that this process imported."""
    with contextlib.suppress(OSError):
        return files.state(_folders()) == _STATE

    return False


def _code():
    """What sources are made from and with, and the state of its files; nothing where they are in no folder."""
    with contextlib.suppress(OSError):
        versions = sys.version, triton.__version__, sympy.__version__
        return (files.contents(_folders()), *versions), files.state(_folders())

    return None, None


_CODE, _STATE = _code()


@functools.cache
def _generated(name, premake, arguments, blocks, num_warps, num_stages):
    """NineToothed's source, which is that of every specialization."""
    arguments = {key: dict(value) if key == "scalars" else value for key, value in arguments}
    handle = ninetoothed.make(
        *premake(**arguments, **dict(blocks)),
        kernel_name=name,
        num_warps=num_warps,
        num_stages=num_stages,
    )

    return pathlib.Path(handle._source).read_text()


def _specialize(source, kernel_name, scalar_types, specialization):
    """Rewrite a generated kernel so that one compiled kernel serves every size.

    Left alone, Triton compiles again for each argument that is 1 or a multiple of 16, takes the width of an integer
    from its value, and passes Python floats as float32.
    """
    tree = ast.parse(source)
    kernel = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == kernel_name)
    integer = "i64" if specialization.wide else "i32"
    constants = {ninetoothed.Tensor(1, name=name).stride_string(dim) for name, dim in specialization.unit_strides}
    constants |= {ninetoothed.Tensor(1, name=name).size_string(dim) for name, dim in specialization.filled}
    walked = {str(dim) for _, dim in specialization.unit_strides}
    arguments = {argument.arg for argument in kernel.args.args}

    if missing := [
        name
        for name, dim in specialization.filled
        if ninetoothed.Tensor(1, name=name).size_string(dim) not in arguments
    ]:
        raise ValueError(f"{kernel_name} has no sizes of {', '.join(missing)} that could be fixed")

    fixed = []

    for argument in kernel.args.args:
        name = argument.arg

        if naming.is_constexpr(name):
            continue

        size = ninetoothed.Tensor.size_pattern().fullmatch(name)

        if name in constants:
            argument.annotation = ast.parse("triton.language.constexpr", mode="eval").body
            continue

        if size or ninetoothed.Tensor.stride_pattern().fullmatch(name):
            argument.annotation = ast.Constant(integer)
        elif name in scalar_types:
            argument.annotation = ast.Constant(scalar_types[name])

        if not specialization.aligned or name in scalar_types or (size and size.group(3) not in walked):
            fixed.append(name)

    kernel.decorator_list = [ast.parse(f"triton.jit(do_not_specialize={fixed!r})", mode="eval").body]

    if specialization.wide:
        _WideProgramId().visit(kernel)

    _through_repetition(tree)
    return ast.unparse(tree) + "\n"


def _through_repetition(tree):
    """Have the generated function launch through :func:`ntops.host.repetition.launch`, so that calls can be recorded.

    With a grid that depends on what autotuning chooses the whole call is not.
    """
    body = tree.body[-1].body
    launch = body[-1].value
    grid = launch.func.slice
    tree.body.insert(0, ast.parse("from ntops.host import repetition").body[0])

    if any(isinstance(node, ast.Name) and node.id == "meta" for node in ast.walk(grid.body)):
        body.insert(0, ast.parse("repetition.prevent()").body[0])
        return

    options = ast.Dict([ast.Constant(keyword.arg) for keyword in launch.keywords], [k.value for k in launch.keywords])
    launch.args = [launch.func.value, grid.body, options, *launch.args]
    launch.func = ast.parse("repetition.launch", mode="eval").body
    launch.keywords = []


class _WideProgramId(ast.NodeTransformer):
    """Makes the program's number 64 bits wide, and with it every offset that is computed from it."""

    def visit_Call(self, node):
        self.generic_visit(node)

        if isinstance(node.func, ast.Attribute) and node.func.attr == "program_id":
            return ast.parse(f"{ast.unparse(node)}.to(triton.language.int64)", mode="eval").body

        return node
