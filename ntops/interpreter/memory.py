"""Loads, stores and atomics of the whole grid at once, and their undoing."""

import math

import numpy as np

from ntops.interpreter import formats
from ntops.interpreter._triton import BaseBuilder, ir, native
from ntops.interpreter.control import NeedsSequential
from ntops.interpreter.handles import Handle, is_fp8, numpy_dtype
from ntops.interpreter.memory_access import Access, dense
from ntops.interpreter.tiles import Tile


def _memory_dtype(dtype):
    """Return the NumPy dtype in which memory holds Triton's scalar ``dtype``."""
    return np.dtype(np.uint16) if dtype.name == "bf16" else numpy_dtype(dtype)


def _range(access):
    return int(access.touched.min()), int(access.touched.max()) + 1


def _overlap(ranges, others):
    return any(low < other_high and other_low < high for low, high in ranges for other_low, other_high in others)


class Memory:
    """The part of the builder that accesses memory.

    ``log`` holds the undo of each store, as a function and its arguments, if programs may have to run again; ``watch``,
    if there is one, is told of every access.
    """

    log = None
    watch = None
    is_split = False
    tracks_accesses = False

    def begin_chunk(self, log, is_split, tracks_accesses):
        """Forget the accesses of the previous programs."""
        self.log = log
        self.is_split = is_split
        self.tracks_accesses = tracks_accesses
        self.largest_block = 0
        self._plain_ranges = []
        self._atomic_ranges = []

    def end_launch(self):
        """Let go of the arguments: the log refers to what was written."""
        self.log = self.watch = None

    def undo(self, mark):
        """Restore the memory contents from when the log had ``mark`` entries."""
        while len(self.log) > mark:
            function, *arguments = self.log.pop()
            function(*arguments)

    def require_sequential(self, why):
        """Stop running several programs at once, or out of their order."""
        if self.programs > 1 or self.is_split:
            raise NeedsSequential(why)

    # Plain accesses

    def create_load(self, pointer, *policies):
        return self._load(pointer, None, None, is_volatile=policies[-1])

    def create_masked_load(self, pointer, mask, other, *policies):
        return self._load(pointer, mask, other, is_volatile=policies[-1])

    def create_store(self, pointer, value, *policies):
        self._store(pointer, value, None)

    def create_masked_store(self, pointer, value, mask, *policies):
        self._store(pointer, value, mask)

    def _load(self, pointer, mask, other, is_volatile=False):
        if is_volatile:
            self.require_sequential("a volatile load may wait for another program")

        dtype = pointer.dtype.element_ty
        access = self._access(_memory_dtype(dtype), pointer, mask)
        self._note_plain(access)

        if self.watch is not None:
            self.watch.on_load(access)

        data = access.spread(access.read())
        loaded = Handle(self._decoded(data, dtype), dtype, pointer.shape)

        if other is None or access.enabled is None:
            return loaded

        return self.create_select(mask, loaded, other)

    def _store(self, pointer, value, mask):
        data = self._encoded(value)
        access = self._access(data.dtype, pointer, mask, value)
        values = access.chosen(data)
        self._note_plain(access)

        if self.watch is not None:
            self.watch.on_store(access, values)

        self._log(access)
        access.write(values)

        if self.watch is not None:
            self.watch.after_store(access, values)

    def _access(self, dtype, pointer, mask, *others, programs=None):
        self.largest_block = max(self.largest_block, math.prod(pointer.shape))
        handles = [handle for handle in (pointer, mask, *others) if handle is not None]
        programs = programs or max(handle.programs for handle in handles)
        addresses = pointer.data
        shape = (programs, *pointer.shape)

        if addresses.shape != shape:
            addresses = np.broadcast_to(addresses, shape)

        if mask is None or mask.data.all():
            return Access(pointer.origin, addresses, None, dtype)

        # The mask is a scalar mask of a scalar access, or has the block's shape.
        enabled = mask.data if mask.data.dtype == bool else mask.data != 0

        if enabled.shape != shape:
            enabled = np.broadcast_to(enabled, shape)

        return Access(pointer.origin, addresses, enabled, dtype)

    @staticmethod
    def _decoded(data, dtype):
        return formats.bfloat16_from_bits(data) if dtype.name == "bf16" else data

    @staticmethod
    def _encoded(value):
        return formats.bits_from_bfloat16(value.data) if value.dtype.name == "bf16" else value.data

    def _log(self, access):
        if self.log is not None:
            self.log.append((access.write, access.read()))

    def _note_plain(self, access):
        if self.tracks_accesses and self.programs > 1 and access.touched.size:
            self._plain_ranges.append(_range(access))

            if _overlap(self._plain_ranges[-1:], self._atomic_ranges):
                raise NeedsSequential("it reads or writes what an atomic changed")

    # Atomics

    def create_atomic_rmw(self, operation, pointer, value, mask, sem, scope):
        if operation not in BaseBuilder.ir_rmw_op_to_interpreter_rmw_op:
            raise NotImplementedError(f"the interpreter does not support the atomic {operation}")

        dtype = pointer.dtype.element_ty

        if dtype.name == "bf16" or is_fp8(dtype):
            raise NotImplementedError(f"the interpreter does not support atomics on {dtype}")

        data = self._encoded(value)
        access = self._access(data.dtype, pointer, mask, value, programs=self.programs)
        self._before_atomic(access)
        addresses, enabled = access.native_lanes()
        data = dense(np.broadcast_to(data, addresses.shape))
        old = native.atomic_rmw(
            BaseBuilder.ir_rmw_op_to_interpreter_rmw_op[operation], addresses, data, enabled, _semantics(sem)
        )

        return Handle(old.reshape(addresses.shape), dtype, pointer.shape)

    def create_atomic_cas(self, pointer, compared, value, sem, scope):
        data = self._encoded(value)
        access = self._access(data.dtype, pointer, None, compared, value, programs=self.programs)
        self._before_atomic(access)
        addresses, _ = access.native_lanes()
        expected, data = (dense(np.broadcast_to(block, addresses.shape)) for block in (self._encoded(compared), data))
        old = native.atomic_cas(addresses, expected, data, _semantics(sem))

        return Handle(self._decoded(old.reshape(addresses.shape), compared.dtype), compared.dtype, pointer.shape)

    def _before_atomic(self, access):
        if self.watch is not None:
            self.watch.on_atomic(access)

        if self.is_split or (self.programs > 1 and not self.tracks_accesses):
            raise NeedsSequential("an atomic after programs went different ways")

        if self.programs > 1 and access.touched.size:
            here = [_range(access)]

            if _overlap(here, self._atomic_ranges + self._plain_ranges):
                raise NeedsSequential("an atomic on what was accessed before")

            self._atomic_ranges += here

        self._log(access)

    def create_atomic_load(self, pointer, mask, sem, scope):
        self.require_sequential("an atomic load may wait for another program")

        return self._load(pointer, mask, None)

    def create_atomic_store(self, pointer, value, mask, sem, scope):
        self.require_sequential("another program may wait for an atomic store")
        self._store(pointer, value, mask)

    def create_atomic_poll(self, pointer, expected, timeout_ns, sem, scope):
        self.require_sequential("it waits for another program")
        matched = self.create_icmpEQ(self._load(pointer, None, None), expected)

        if timeout_ns is None and not matched.data.all():
            raise RuntimeError(
                "tl.atomic_poll would wait forever: programs run one after the other here, in the order of the grid"
            )

        return matched

    # Block pointers and tensor descriptors

    def create_make_block_ptr(self, base, shape, strides, offsets, block_shape, order):
        return Tile(base, shape, strides, tuple(block_shape), tuple(offsets))

    def create_advance(self, tile, offsets):
        return tile.at([self.create_add(old, step) for old, step in zip(tile.offsets, offsets, strict=True)])

    def create_tensor_pointer_load(self, tile, boundary_check, padding, *policies):
        pointer, mask = tile.pointers(boundary_check)

        return self._load(pointer, mask, _padding(padding, pointer), is_volatile=policies[-1])

    def create_tensor_pointer_store(self, tile, value, boundary_check, *policies):
        pointer, mask = tile.pointers(boundary_check)
        self._store(pointer, value, mask)

    def create_make_tensor_descriptor(self, base, shape, strides, block_shape, is_signed, padding=None):
        tile = Tile(base, shape, strides, tuple(block_shape), padding=padding)
        tile.check_descriptor()

        return tile

    def create_descriptor_load(self, tile, offsets, *policies):
        pointer, mask = tile.at(offsets).pointers(range(len(tile.block_shape)))

        return self._load(pointer, mask, _padding(tile.padding, pointer))

    def create_descriptor_store(self, tile, value, offsets):
        pointer, mask = tile.at(offsets).pointers(range(len(tile.block_shape)))
        self._store(pointer, value, mask)

    def create_descriptor_gather(self, tile, rows, column, type):
        pointer, mask = tile.at([rows, column]).pointers((0, 1), rows=rows)

        return self._load(pointer, mask, _padding(tile.padding, pointer))

    def create_descriptor_scatter(self, tile, value, rows, column):
        pointer, mask = tile.at([rows, column]).pointers((0, 1), rows=rows)
        self._store(pointer, value, mask)


def _semantics(sem):
    if sem not in BaseBuilder.ir_sem_to_interpreter_sem:
        raise NotImplementedError(f"the interpreter does not support the memory order {sem}")

    return BaseBuilder.ir_sem_to_interpreter_sem[sem]


def _padding(padding, pointer):
    """Return the value of out-of-bounds elements of a tile: zero unless NaN was requested."""
    if padding != ir.PADDING_OPTION.PAD_NAN:
        return None

    dtype = pointer.dtype.element_ty
    nan = np.array([np.nan], dtype=numpy_dtype(dtype)) if not is_fp8(dtype) else np.array([0x7F], dtype=np.uint8)

    return Handle(nan.reshape(1, *(1,) * len(pointer.shape)), dtype, pointer.shape)
