"""Watch a call for work that its recording does not contain: operations of torch, and launches of kernels."""

import contextlib
import threading

from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs

# An allocation alone need not be repeated: a kernel launched on that memory, or a result in it, is not expressible by
# the call's tensors anyway. Queries of dtypes are part of what distinguishes calls.
_NOTHING = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
_NOTHING |= {"can_cast", "promote_types", "result_type"}


class _Local(threading.local):
    watch = None


_local = _Local()


class Watch(TorchDispatchMode):
    """A context around one call of one thread.

    Outside of :func:`known`, ``others`` tells whether torch was called for anything but views, memory and dtypes, and
    ``launched`` counts the kernels that Triton launched.
    """

    def __init__(self):
        super().__init__()
        self.others = False
        self.launched = 0
        self.known = False
        self._thread = threading.get_ident()
        self._hooks = knobs.runtime.launch_enter_hook

    @classmethod
    def _should_skip_dynamo(cls):
        """Return false, so that torch does not import its compiler for the first operation, which takes seconds."""
        return False

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __enter__(self):
        self._outer, _local.watch = _local.watch, self

        # Another hook may have replaced Triton's chain of hooks.
        if hasattr(self._hooks, "add"):
            self._hooks.add(self._launch)

        return super().__enter__()

    def __exit__(self, exc_type, exc_val, exc_tb):
        super().__exit__(exc_type, exc_val, exc_tb)
        _local.watch = self._outer

        if hasattr(self._hooks, "remove"):
            self._hooks.remove(self._launch)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_view = getattr(func, "is_view", False)

        if not (self.known or is_view or func.overloadpacket.__name__ in _NOTHING):
            self.others = True

        return func(*args, **(kwargs or {}))

    def _launch(self, metadata):
        # Other threads launch kernels of their own.
        self.launched += not self.known and threading.get_ident() == self._thread


@contextlib.contextmanager
def known():
    """Return a context for operations that each repetition makes itself, or that follow from a call's numbers alone."""
    watch = _local.watch

    if watch is None:
        yield
        return

    outer, watch.known = watch.known, True

    try:
        yield
    finally:
        watch.known = outer
