"""Device properties that every launch needs, and block sizes as Triton requires them."""

import contextlib
import functools

import torch
import triton

from ntops._runtime import INTERPRETED

_HERE = contextlib.nullcontext()


def on_device(device):
    """Return a context in which kernels go to ``device`` and its current stream; it costs nothing if the device is
    current."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _HERE

    return torch.cuda.device(device)


@functools.cache
def shared_memory(index):
    """Return the bytes of shared memory that a program can have on the device of this index."""
    return triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]


@functools.cache
def multiprocessors(index):
    """Return the number of multiprocessors of the device of this index."""
    return triton.runtime.driver.active.utils.get_device_properties(index)["multiprocessor_count"]


@functools.cache
def is_hopper():
    """Tell whether kernels go to an H100 or H200, where configurations were measured; true under the interpreter."""
    return INTERPRETED or triton.runtime.driver.active.get_current_target().arch == 90


@functools.cache
def has_fp8():
    """Tell whether the GPU itself converts and multiplies float8_e4m3fn and float8_e5m2: NVIDIA's do from sm_89 on.
    AMD's gfx942 has other formats. Under the interpreter these are Triton's own types."""
    if INTERPRETED:
        return True

    target = triton.runtime.driver.active.get_current_target()
    return target.backend == "cuda" and target.arch >= 89


def next_power_of_2(value):
    """Return the smallest power of two that is at least ``value``."""
    return 1 << (value - 1).bit_length()
