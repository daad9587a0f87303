"""Make kernels from ``premake``: once for each configuration, and specialised as little as speed allows."""

import ast
import contextlib
import copy
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

from ntops._runtime import INTERPRETED
from ntops.interpreter.ninetoothed_files import source_path, write_source
from ntops.launch import file_changes, tracing
from ntops.launch.settings import get_default_num_stages, get_default_num_warps

_UNIT = 16
"""The number of which Triton tells multiples apart, unless it is told not to."""

_kernels = {}
_lock = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Specialization:
    """The part of a call's geometry that is compiled into a kernel: as little as speed allows, and no size except a
    tile's.

    :param unit_strides: The pairs (tensor name, dim) whose stride is 1.
    :param unit: The power of 2, at most 16, of which all strides of the tensors ``vectors`` are multiples, and the
        sizes of each dim that has a unit stride in one of them, or, with ``apart``, in the same one. With more than 1,
        their pointers are multiples of 16 bytes.
    :param vectors: The names of these tensors.
    :param wide: Whether offsets need 64 bits.
    :param filled: The pairs (tensor name, dim) whose size equals the tile's, so that nothing is masked along the dim.
    :param whole: The elements of a tile of tensors with one dim, where tiles that are whole are computed apart from the
        last one and without its mask; 0: all tiles are masked.
    :param apart: Whether dims of one number are others in each tensor, as the rows and terms of a product's factors.
    """

    unit_strides: tuple[tuple[str, int], ...] = ()
    unit: int = 1
    vectors: tuple[str, ...] = ()
    wide: bool = False
    filled: tuple[tuple[str, int], ...] = ()
    whole: int = 0
    apart: bool = False


@dataclasses.dataclass(frozen=True)
class Config:
    """A kernel's configuration: block sizes by the names that ``premake`` gives them, warps and stages."""

    blocks: tuple[tuple[str, int | tuple[int, ...]], ...]
    num_warps: int = 4
    num_stages: int = 1


def make(premake, arguments, config, specialization):
    """Return the kernel that ``premake(**arguments)`` describes, from the cache if it was made before.

    :param premake: The ``premake`` of a module of ``ntops.kernels``.
    :param arguments: Its arguments other than block sizes; the values are hashable.
    :param config: The library's choice; defaults that the user has set take precedence.
    :param specialization: The geometry that is compiled into the kernel.
    """
    num_warps = get_default_num_warps() or config.num_warps
    num_stages = get_default_num_stages() or config.num_stages

    if INTERPRETED and specialization != (general := Specialization(wide=specialization.wide)):
        # Only a compiler reads the others, and making a source takes longer than most calls that are interpreted.
        kernel = make(premake, arguments, config, general)
        return functools.partial(_launch_checked, kernel, specialization)

    key = (premake, tuple(arguments.items()), config.blocks, num_warps, num_stages, specialization)
    kernel = _kernels.get(key)

    if kernel is not None:
        return kernel

    # NineToothed keeps a kernel's types in annotations of the application, which threads share.
    with _lock:
        if key not in _kernels:
            name = f"ntops_{premake.__module__.rpartition('.')[2]}"
            path = str(_source(name, key))
            module = import_from_path(path, path)
            tracing.describe(getattr(module, name), config.blocks)
            _kernels[key] = getattr(module, f"launch_{name}")

        return _kernels[key]


def _launch_checked(kernel, specialization, *arguments):
    """Launch an interpreted kernel, if the sizes and strides of its tensors are the multiples that a kernel compiled
    with this specialization would round them down to.

    Raises RuntimeError where they are not: a compiled kernel would read elsewhere.
    """
    unit = specialization.unit
    tensors = dict(zip(kernel.__code__.co_varnames, arguments, strict=False))

    for name in specialization.vectors if 1 < unit < _UNIT else ():
        for dim, (size, stride) in enumerate(zip(tensors[name].shape, tensors[name].stride(), strict=True)):
            is_told = (name, dim) not in specialization.unit_strides and size > 1

            if (is_told and stride % unit) or (_is_walked(specialization, name, dim) and size % unit):
                shape, strides = tuple(tensors[name].shape), tensors[name].stride()
                raise RuntimeError(
                    f"{kernel.__name__} assumes multiples of {unit}, and a size or stride of tensor {name!r}, of shape "
                    f"{shape} and strides {strides}, is not one"
                )

    return kernel(*arguments)


def _is_walked(specialization, name, dim):
    """Tell whether a tensor whose numbers are told has a unit stride along a dim: with ``apart``, this tensor."""
    # Triton itself tells which are multiples of 16, of any tensors.
    any_tensor = specialization.unit == _UNIT
    walked = [pair for pair in specialization.unit_strides if any_tensor or pair[0] in specialization.vectors]
    return (name, dim) in walked if specialization.apart else any(dim == along for _, along in walked)


def _source(name, key):
    """Return the file of a kernel's source, from an earlier process if that made it from the same code."""
    premake, arguments, *_, specialization = key
    path = None

    # The files behind a foreign premake are unknown.
    if premake.__module__.startswith("ntops.kernels.") and _is_unchanged():
        described = premake.__module__, premake.__qualname__, key[1:], _CODE
        path = source_path(file_changes.digest(repr(described)))

        if path.exists():
            return path

    scalar_types = dict(dict(arguments).get("scalars") or ())
    source = _specialize(_generated(name, *key[:-1]), name, scalar_types, specialization)

    # NineToothed reads the application's file, which may have been edited meanwhile.
    if path is None or not _is_unchanged():
        return generation.cache_source(source)

    write_source(path, source)
    return path


def _folders():
    return [pathlib.Path(__file__).parents[1], pathlib.Path(ninetoothed.__file__).parent]


def _is_unchanged():
    """Tell whether files are still those that this process imported."""
    with contextlib.suppress(OSError):
        return file_changes.state(_folders()) == _STATE

    return False


def _code():
    """Return what sources are made from and with (contents of files, versions), and the state of the files; ``None``
    for both if the files are in no folder."""
    with contextlib.suppress(OSError):
        versions = sys.version, triton.__version__, sympy.__version__
        return (file_changes.contents(_folders()), *versions), file_changes.state(_folders())

    return None, None


_CODE, _STATE = _code()


@functools.cache
def _generated(name, premake, arguments, blocks, num_warps, num_stages):
    """Return NineToothed's source, which all specializations share."""
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

    By default, Triton compiles again for each argument that is 1 or a multiple of 16, takes the width of an integer
    from its value, and passes Python floats as float32.
    """
    tree = ast.parse(source)
    kernel = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == kernel_name)
    integer = "i64" if specialization.wide else "i32"
    constants = {ninetoothed.Tensor(1, name=name).stride_string(dim) for name, dim in specialization.unit_strides}
    constants |= {ninetoothed.Tensor(1, name=name).size_string(dim) for name, dim in specialization.filled}
    vectors, unit = specialization.vectors, specialization.unit
    arguments = {argument.arg for argument in kernel.args.args}

    if missing := [
        name
        for name, dim in specialization.filled
        if ninetoothed.Tensor(1, name=name).size_string(dim) not in arguments
    ]:
        raise ValueError(f"{kernel_name} has no sizes of {', '.join(missing)} that could be fixed")

    fixed, multiples = [], []

    for argument in kernel.args.args:
        name = argument.arg

        if naming.is_constexpr(name):
            continue

        size = ninetoothed.Tensor.size_pattern().fullmatch(name)
        stride = ninetoothed.Tensor.stride_pattern().fullmatch(name)
        pointer = ninetoothed.Tensor.pointer_pattern().fullmatch(name)
        if name in constants:
            argument.annotation = ast.parse("triton.language.constexpr", mode="eval").body
            continue

        if size or stride:
            argument.annotation = ast.Constant(integer)
        elif name in scalar_types:
            argument.annotation = ast.Constant(scalar_types[name])

        of = next((found.group(1) for found in (size, stride, pointer) if found), None)
        enters = name not in scalar_types and not (size and not _is_walked(specialization, of, int(size.group(3))))

        if not enters or (unit < _UNIT and not (pointer and unit > 1 and of in vectors)):
            fixed.append(name)

        if enters and 1 < unit < _UNIT and not pointer and of in vectors:
            multiples.append(name)

    # Triton knows a product with a number for a multiple of it.
    kernel.body[:0] = [ast.parse(f"{name} = {name} // {unit} * {unit}").body[0] for name in multiples]
    kernel.decorator_list = [ast.parse(f"triton.jit(do_not_specialize={fixed!r})", mode="eval").body]

    if specialization.whole:
        _compute_whole_tiles_apart(kernel, specialization.whole)

    if specialization.wide:
        _WideProgramId().visit(kernel)

    _through_repetition(tree)
    return ast.unparse(tree) + "\n"


def _compute_whole_tiles_apart(kernel, tile):
    """Repeat the body of a kernel over one dim: without masks for tiles that are whole, and for the last one.

    A mask that may end at any element makes Triton load and store elements one by one.
    """
    (size,) = (name.arg for name in kernel.args.args if ninetoothed.Tensor.size_pattern().fullmatch(name.arg))
    program, *body = kernel.body
    test = f"({program.targets[0].id} + 1) * {tile} <= {size}"
    unmasked = [_Unmasked().visit(copy.deepcopy(statement)) for statement in body]
    kernel.body = [program, ast.If(ast.parse(test, mode="eval").body, unmasked, body)]


class _Unmasked(ast.NodeTransformer):
    """Take the masks from loads and stores."""

    def visit_Call(self, node):
        self.generic_visit(node)

        if isinstance(node.func, ast.Attribute) and node.func.attr in ("load", "store"):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in ("mask", "other")]

        return node


def _through_repetition(tree):
    """Make the generated function launch through :func:`ntops.launch.recorder.launch`, so that calls can be recorded.

    A function whose grid depends on autotuning stays unrecorded.
    """
    body = tree.body[-1].body
    launch = body[-1].value
    grid = launch.func.slice
    tree.body.insert(0, ast.parse("from ntops.launch import recorder").body[0])

    if any(isinstance(node, ast.Name) and node.id == "meta" for node in ast.walk(grid.body)):
        body.insert(0, ast.parse("recorder.prevent()").body[0])
        return

    options = ast.Dict([ast.Constant(keyword.arg) for keyword in launch.keywords], [k.value for k in launch.keywords])
    launch.args = [launch.func.value, grid.body, options, *launch.args]
    launch.func = ast.parse("recorder.launch", mode="eval").body
    launch.keywords = []


class _WideProgramId(ast.NodeTransformer):
    """Make the program's index 64 bits wide, and with it every offset that is computed from it."""

    def visit_Call(self, node):
        self.generic_visit(node)

        if isinstance(node.func, ast.Attribute) and node.func.attr == "program_id":
            return ast.parse(f"{ast.unparse(node)}.to(triton.language.int64)", mode="eval").body

        return node
