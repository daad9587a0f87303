"""Stage the calls of a sequence in one process: where operands lie, which settings change between calls, and which
results are kept. The judged process loads this file by its path, so it needs torch and nothing else."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils import dlpack

GRADIENT = "gradient"
"""Names what is kept of a call that was differentiated."""
PLAIN = {
    "precision": "highest",
    "default_dtype": "float32",
    "default_device": "cpu",
    "threads": 0,
    "deterministic": False,
    "mode": "grad",
    "thread": False,
}
"""The settings of a user who has set nothing."""


class Stage:
    """The calls of one sequence.

    :param device: The device on which they are made.
    :param sizes: The most bytes that the operand of each number needs.
    :param differentiate: Returns the gradients of a result, for a list of operands.
    """

    def __init__(self, device, sizes, differentiate):
        self._device, self._sizes, self._places = torch.device(device), sizes, {}
        self._last, self._alive = {}, []
        """The operands of the call before, by number, and the operands of earlier calls."""
        self._pending = None
        """The call before and how it was made, until it is known what becomes of it."""
        self._kept = []
        self._differentiate, self._passes = differentiate, []
        """Number, result, operands and time of each backward pass that is still to be made."""
        self._parts = {}
        """The first byte in the arena and the number of bytes of each operand there, by its number."""
        self._thread = None
        """The user's other thread."""

    def operands(self, inputs, how, written=()):
        """Return operands for the next call, filled from CPU tensors.

        :param how: ``call``, its number; ``memory``, where they lie; ``result``, what becomes of the result;
            ``resized``, numbers of operands that torch may resize, which need a storage of torch's own;
            ``settings``, what the user has set; ``gradients``, when the call is differentiated; ``wanted``, numbers of
            the operands that require a gradient.
        :param written: The numbers of operands that the call writes.
        """
        self._settle()
        memory = how["memory"]
        placed = [
            self._place(number, tensor, "new" if number in how["resized"] else memory)
            for number, tensor in enumerate(inputs)
        ]
        operands = [_view(place, tensor) for (place, _), tensor in zip(placed, inputs, strict=True)]
        if memory == "arena":
            operands, self._parts = _in_arena(operands, how["resized"])
        last = dict(self._last)
        if memory == "freed":
            last.clear()
            for number in range(len(operands)):
                # Nothing else may be made between these two: the new object gets the id of the old one.
                self._last.pop(number, None)
                operands[number] = operands[number].detach()
        if how["settings"].get("mode") == "parameters":
            # Where torch takes a number, it takes a tensor without dims only if that requires no gradient.
            operands = [
                torch.nn.Parameter(one) if one.ndim and one.is_floating_point() and number not in written else one
                for number, one in enumerate(operands)
            ]
        self._alive.extend(last.values())
        if memory in ("same", "behind"):
            operands = [
                _again(last.get(number), operand, memory == "same" and placed[number][1])
                for number, operand in enumerate(operands)
            ]
        operands = [
            one if one.requires_grad == (number in how["wanted"]) or isinstance(one, torch.nn.Parameter) else _leaf(one)
            for number, one in enumerate(operands)
        ]
        self._last = dict(enumerate(operands))
        return tuple(operands)

    def apart(self, operands, value, how):
        """Return the operands of a call as they were given, those in an arena as copies in storages of their own; and
        its results, of which those that are operands are these. Those of a call that is differentiated are detached."""
        if how["wanted"]:
            own = tuple(one.detach() for one in operands)
            given = (detached for detached, one in zip(own, operands, strict=True) if one is value)
            return own, next(given, value.detach() if isinstance(value, torch.Tensor) else value)
        return in_own_storages(operands, value, self._parts) if how["memory"] == "arena" else (operands, value)

    def made(self, operands, value, how):
        """Take in the results of a call; they are kept, dropped or overwritten before the next call."""
        self._pending = operands, value, how

    def kept(self):
        """Return what the user has kept, as ``(call, what, index, tensor)``, as it is now, after all backward passes.
        In the place of the gradients of a pass that raised stands its exception."""
        self._settle()
        self._passes.sort(key=lambda one: one[-1] != "in order")
        while self._passes:
            self._pass_back(self._passes.pop(0 if self._passes[0][-1] == "in order" else -1))
        return self._kept

    def _pass_back(self, about):
        call, value, wanted, _ = about
        try:
            found = self._differentiate(value, wanted)
        # The implementation is somebody else's code.
        except Exception as error:  # noqa: BLE001
            # Its frames would hold the graph.
            found = [error.with_traceback(None)]
        for index, (one, gradient) in enumerate(zip(wanted, found, strict=False)):
            # One that is not there stands for zeros.
            shown = torch.zeros_like(one) if gradient is None else gradient
            if isinstance(shown, torch.Tensor) and shown.layout is not torch.strided:
                shown = TypeError(f"a gradient has the layout {shown.layout}")
            self._kept.append((call, GRADIENT, index, shown))

    def _settle(self):
        if self._pending is None:
            return
        (operands, value, how), self._pending = self._pending, None
        if how["wanted"] and isinstance(value, torch.Tensor) and value.requires_grad:
            about = how["call"], value, [operands[number] for number in how["wanted"]], how["gradients"]
            # By now the judge has the result as the call has returned it.
            if how["gradients"] == "at once":
                self._pass_back(about)
            else:
                self._passes.append(about)
        if how["memory"] == "new":
            # No other call is given these operands.
            self._kept += [(how["call"], "operand", index, one) for index, one in enumerate(map(_memory, operands))]
        taken = {operand.untyped_storage().data_ptr() for operand in operands}
        for index, tensor in enumerate(value if isinstance(value, tuple | list) else (value,)):
            if type(tensor) is not torch.Tensor or not tensor.numel() or tensor.is_meta:
                continue
            if tensor.untyped_storage().data_ptr() in taken:
                continue
            if how["result"] == "overwritten":
                _overwrite(tensor)
            elif how["result"] != "dropped":
                shown = tensor if how["result"] == "kept" else tensor.detach()
                self._kept.append((how["call"], "result", index, shown))

    def _place(self, number, tensor, memory):
        """Return a storage for the operand of a number, as large as that of ``tensor`` and with its contents; and
        whether these differ from those before."""
        data = _memory(tensor).to(self._device)
        if memory in ("new", "arena") or not len(data):
            return data.clone().untyped_storage(), True
        if number not in self._places:
            self._places[number] = torch.empty(self._sizes[number], dtype=torch.uint8, device=self._device)
        place = self._places[number][: len(data)]
        changed = not torch.equal(place, data)
        place.copy_(data)
        return dlpack.from_dlpack(dlpack.to_dlpack(place)).untyped_storage(), changed

    def under(self, settings, function):
        """Return the function, called as by a user who has set ``settings``."""
        if not settings:
            return function

        def call(*args, **kwargs):
            with applied(settings, everything=False):
                return function(*args, **kwargs)

        def elsewhere(*args, **kwargs):
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1)
            return self._thread.submit(here, *args, **kwargs).result()

        def here(*args, **kwargs):
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            return call(*args, **kwargs)

        return elsewhere if settings.get("thread") else call


@contextlib.contextmanager
def applied(settings, everything=True):
    """Enter a context in which the user has set ``settings``, in this thread; restore the settings at its end.

    :param settings: The settings that differ from ``PLAIN``.
    :param everything: False leaves settings that do not differ as they are found.
    """
    wanted = PLAIN | settings
    # As one number: on means warnings, since torch refuses its own products on a GPU otherwise. To say the same with
    # torch.use_deterministic_algorithms imports torch's compiler, which takes seconds.
    setters = {
        "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "default_dtype": (lambda: str(torch.get_default_dtype()).removeprefix("torch."), _set_default_dtype),
        "deterministic": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    }
    with contextlib.ExitStack() as stack:
        for name, (get, put) in setters.items():
            if everything or wanted[name] != PLAIN[name]:
                stack.enter_context(_put(put, get(), wanted[name]))
        if wanted["threads"]:
            stack.enter_context(_put(torch.set_num_threads, torch.get_num_threads(), wanted["threads"]))
        if wanted["default_device"] != PLAIN["default_device"]:
            stack.enter_context(torch.device(wanted["default_device"]))
        if wanted["mode"] != "grad":
            stack.enter_context(torch.inference_mode() if wanted["mode"] == "inference" else torch.no_grad())
        yield


@contextlib.contextmanager
def _put(put, before, now):
    put(now)
    try:
        yield
    finally:
        put(before)


def _set_default_dtype(name):
    torch.set_default_dtype(getattr(torch, name))


def _leaf(tensor):
    """Return a tensor of the same memory that requires a gradient where this one does not."""
    return tensor.detach().requires_grad_(not tensor.requires_grad)


def _memory(tensor):
    """Return the whole storage as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _again(last, operand, counted):
    """Return the tensor of the call before, where an operand lies as it did; ``counted``: counted as written."""
    if last is None or type(last) is not type(operand):
        return operand
    if not operand.numel() or _where(last) != _where(operand):
        return operand
    if counted:
        torch.autograd.graph.increment_version(last)
    return last


def _view(storage, like, further=0):
    """Return a tensor in ``storage`` with dtype, shape and strides of another, so many elements further."""
    result = torch.empty(0, dtype=like.dtype, device=storage.device)
    return result.set_(storage, like.storage_offset() + further, like.shape, like.stride())


def in_own_storages(operands, value, parts):
    """Return operands that are parts of storages as copies in storages of their own; and the results, of which those
    that are operands are these.

    :param parts: The first byte and the number of bytes of each part, by number.
    """
    own = {}
    for number, (start, size) in parts.items():
        one = operands[number]
        memory = _memory(one)[start : start + size].clone().untyped_storage()
        own[number] = _view(memory, one, -start // one.itemsize)
    return exchanged(operands, value, own)


def exchanged(operands, value, others):
    """Return operands and results with other tensors in the place of some operands.

    :param others: These tensors, by the numbers of the operands. A result that is a view of one of the operands becomes
        a copy.
    """
    found = [others.get(number, one) for number, one in enumerate(operands)]
    gone = [operands[number].untyped_storage()._cdata for number in others]

    def given(result):
        same = next((own for own, one in zip(found, operands, strict=True) if one is result), None)
        if same is not None:
            return same
        is_view = type(result) is torch.Tensor and result.layout is torch.strided
        return result.clone() if is_view and result.untyped_storage()._cdata in gone else result

    return tuple(found), tuple(map(given, value)) if type(value) is tuple else given(value)


def _in_arena(operands, apart):
    """Return the operands with their storages one behind another in one, but for those whose numbers are in ``apart``;
    and the first byte and the number of bytes of each, by number."""
    end, parts = 0, {}
    for number, one in enumerate(operands):
        if number not in apart:
            start = -(-end // one.itemsize) * one.itemsize
            parts[number] = start, one.untyped_storage().nbytes()
            end = sum(parts[number])
    found = list(operands)
    if parts:
        arena = torch.empty(end, dtype=torch.uint8, device=operands[0].device)
        for number, (start, size) in parts.items():
            arena[start : start + size].copy_(_memory(operands[number]))
            found[number] = _view(arena.untyped_storage(), operands[number], start // operands[number].itemsize)
    return found, parts


def _where(tensor):
    """Return where a tensor lies, and how."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes(), tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


def _overwrite(result):
    """Change every element, through a plain tensor: one of inference mode cannot be written outside of it."""
    plain = _view(result.untyped_storage(), result)
    if plain.dtype == torch.bool:
        plain.logical_not_()
    else:
        plain.copy_(torch.full_like(plain, 77, dtype=torch.float32))
