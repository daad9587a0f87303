"""The library's settings: the user's defaults for the configurations of kernels."""

from ntops.launch import recorder

_defaults = {"num_warps": None, "num_stages": None, "max_num_configs": None}


def set_default_num_warps(num_warps):
    """Set the number of warps of kernels called from now on, a power of two up to 32; ``None``: the library's choice.

    The Hopper kernels of products and attention, whose warps have separate tasks, are not used then.
    """
    if type(num_warps) is int and num_warps > 0 and (num_warps > 32 or num_warps & (num_warps - 1)):
        raise ValueError(f"num_warps must be a power of two up to 32 or None, not {num_warps}")

    _set_default("num_warps", num_warps)


def set_default_num_stages(num_stages):
    """Set the number of pipeline stages of kernels called from now on; ``None``: the library's choice.

    A kernel without the shared memory for so many stages has as many as fit. The Hopper kernels of products and
    attention, whose stages are part of their tiles, are not used then.
    """
    _set_default("num_stages", num_stages)


def set_default_max_num_configs(max_num_configs):
    """Measure up to this many configurations at the first call for each new shape, and take the fastest from then on.

    They are the library's choice and others that are right for the call. ``None`` or 1 selects the library's choice
    without measuring, as happens under the interpreter and during a CUDA graph capture. The measurements write memory
    of their own, as large as the output, so that a call writes the caller's output once.
    """
    _set_default("max_num_configs", max_num_configs)


def get_default_num_warps():
    """Return the number of warps set by :func:`set_default_num_warps`, or ``None``."""
    return _defaults["num_warps"]


def get_default_num_stages():
    """Return the number of pipeline stages set by :func:`set_default_num_stages`, or ``None``."""
    return _defaults["num_stages"]


def get_default_max_num_configs():
    """Return the number of configurations set by :func:`set_default_max_num_configs`, or ``None``."""
    return _defaults["max_num_configs"]


def _set_default(name, value):
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"{name} must be a positive integer or None, not {value!r}")

    _defaults[name] = value
    recorder.forget()
