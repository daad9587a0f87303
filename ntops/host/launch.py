"""What every launch needs: the device, and block sizes as Triton wants them."""

import contextlib
import functools

import torch
import triton

from ntops._runtime import INTERPRETED

_HERE = contextlib.nullcontext()


def on_device(device):
    """A context in which kernels go to ``device`` and its current stream; free where it is current already."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _HERE

    return torch.cuda.device(device)


@functools.cache
def shared_memory(index):
    """How much shared memory a program can have on the device of this index, in bytes."""
    return triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]


@functools.cache
def multiprocessors(index):
    """How many multiprocessors the device of this index has."""
    return triton.runtime.driver.active.utils.get_device_properties(index)["multiprocessor_count"]


@functools.cache
def is_hopper():
    """Whether kernels go to an H100 or H200, where configurations were measured; so it counts under the interpreter."""
    return INTERPRETED or triton.runtime.driver.active.get_current_target().arch == 90


@functools.cache
def has_fp8():
    """Whether the GPU converts and multiplies float8_e4m3fn and float8_e5m2 itself: NVIDIA's from sm_89 on. Those of
    AMD's gfx942 are other formats. Under the interpreter they are Triton's own types."""
    if INTERPRETED:
        return True

    target = triton.runtime.driver.active.get_current_target()
    return target.backend == "cuda" and target.arch >= 89


def next_power_of_2(value):
    """The smallest power of two that is at least ``value``."""
    return 1 << (value - 1).bit_length()
