"""The context in which calls of torch go to ntops."""

import collections
import dataclasses
import difflib
import threading

import torch
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from ntops._runtime import INTERPRETED
from ntops.aten import calls
from ntops.launch import virtual_tensors

_DEVICE = "cpu" if INTERPRETED else "cuda"
_PLAIN = torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl
_BACKWARD = torch.Tensor.backward, torch.autograd.backward


class _Local(threading.local):
    def __init__(self):
        self.logs = []
        self.last = Log()


@dataclasses.dataclass
class Log:
    """Counts of the calls of torch in a block; as a string, a line for each row.

    :param replaced: The number of calls that ntops computed, by operator.
    :param left: The number of calls that torch computed, by operator and reason.
    """

    replaced: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    left: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def __str__(self):
        rows = [f"{count:8}  {name}" for name, count in self.replaced.most_common()]
        rows += [f"{count:8}  {name}, left to torch: {reason}" for (name, reason), count in self.left.most_common()]
        return "\n".join(rows) or "no calls"


_local = _Local()


class use(TorchFunctionMode):
    """A context in which this thread's calls of torch's functions, methods and operators go to ntops.

    ``torch.add(x, y)``, ``x.add(y)``, ``x + y`` and ``x += y`` become :func:`ntops.torch.add`, and so on for each
    operator that torch has, and for :func:`torch.nn.functional.linear`; gradients and autocast work. Blocks can be
    nested: a call that the inner block leaves to torch goes to the outer one. Functions that torch composes of others
    in C++ or in one function of :mod:`torch.nn.functional`, such as ``multi_head_attention_forward``, stay torch's.

    :param ops: The names of the operators to replace; ``None``: all.
    :param fallback: Whether torch computes calls that ntops does not support; :meth:`log` lists them with the reason.
        If false, these calls raise ntops' errors.
    :raises ValueError: ``ops`` has an unknown name.
    """

    def __init__(self, ops=None, fallback=True):
        super().__init__()
        table = calls.table()
        names = [*table] if ops is None else [ops] if isinstance(ops, str) else [*ops]

        for name in names:
            if name not in table:
                nearest = difflib.get_close_matches(str(name), table, 1) or sorted(table)
                raise ValueError(f"argument 'ops' has {name!r}, which is not among them; near: {', '.join(nearest)}")

        self._calls = {calls.key(function): (name, ours) for name in names for function, ours in table[name].items()}
        self._fallback = fallback
        self._log = Log()
        self._lock = threading.Lock()

    @staticmethod
    def log():
        """Return the :class:`Log` of the innermost block that this thread is in, or else of the last that it was in."""
        return _local.logs[-1] if _local.logs else _local.last

    def __enter__(self):
        _local.logs.append(self._log)
        return super().__enter__()

    def __exit__(self, exc_type, exc_val, exc_tb):
        _local.last = _local.logs.pop()
        super().__exit__(exc_type, exc_val, exc_tb)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name, ours = self._calls.get(calls.key(func), (None, None))

        if ours is None:
            return self._backward(func, *args, **kwargs) if func in _BACKWARD else func(*args, **kwargs)

        try:
            _check(types, args, kwargs)
            result = ours(*args, **kwargs)
        # A TypeError says that ntops does not take the call; torch, which has other signatures, knows whether it is an
        # error.
        except (NotImplementedError, TypeError) as error:
            if not self._fallback:
                raise

            self._count(self._log.left, (name, str(error)))
        else:
            self._count(self._log.replaced, name)
            return result

        return func(*args, **kwargs)

    def _backward(self, func, tensors, **kwargs):
        """Run a backward pass in the block, so that checkpoints recompute with the same operators as in forward.

        torch disables a mode while the mode handles a call, so the backward runs under the mode again, from graph
        edges, which no mode intercepts.
        """
        outputs = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]

        if kwargs["inputs"] is not None or not all(_requires_grad(one) for one in outputs):
            return func(tensors, **kwargs)

        edges = [get_gradient_edge(one) for one in outputs]
        gradients = kwargs.get("gradient", kwargs.get("grad_tensors"))

        with self:
            return torch.autograd.backward(edges, gradients, kwargs["retain_graph"], kwargs["create_graph"])

    def _count(self, counter, key):
        # Compiled calls are not counted: torch traces each only once.
        if not torch.compiler.is_compiling():
            # Autograd's threads call the mode of the thread that they work for.
            with self._lock:
                counter[key] += 1


def _requires_grad(value):
    return isinstance(value, torch.Tensor) and value.requires_grad


def _check(types, args, kwargs):
    """Refuse tensors on devices where kernels do not run, tensor types that override torch's functions, and gradients
    by transforms."""
    for one in types:
        function = one.__torch_function__

        if getattr(function, "__func__", function) not in _PLAIN:
            raise NotImplementedError(f"an argument is a {one.__name__}, which has a __torch_function__ of its own")

    if not torch.compiler.is_compiling() and virtual_tensors.transforms_gradients():
        raise NotImplementedError("a transform of torch.func differentiates, and takes no gradients of ours")

    for one in (*args, *kwargs.values()):
        if isinstance(one, torch.Tensor) and (one.is_cpu if INTERPRETED else one.is_cuda):
            return

    raise NotImplementedError(f"no argument is on {_DEVICE}, where kernels run")
