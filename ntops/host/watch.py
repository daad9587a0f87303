"""What a call does beside what its recording knows: operations of torch, and launches of kernels."""

import contextlib
import threading

from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs

# New memory by itself is nothing to repeat: a kernel that is launched on it, and a result that lies in it, cannot be
# told in terms of the call's tensors. And what is asked of dtypes is a part of what tells calls apart.
_NOTHING = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
_NOTHING |= {"can_cast", "promote_types", "result_type"}


class _Local(threading.local):
    watch = None


_local = _Local()


class Watch(TorchDispatchMode):
    """A context of one call, by one thread.

    Outside of :func:`known`, ``others`` is whether torch was asked for anything but views, memory and dtypes, and
    ``launched`` how many kernels Triton launched.
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
        """Else torch imports its compiler for the first operation, which takes seconds."""
        return False

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __enter__(self):
        self._outer, _local.watch = _local.watch, self

        # Somebody may have put a function in the place of Triton's chain.
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
    """A context of operations that each repetition makes itself, or that follow from a call's numbers alone."""
    watch = _local.watch

    if watch is None:
        yield
        return

    outer, watch.known = watch.known, True

    try:
        yield
    finally:
        watch.known = outer
