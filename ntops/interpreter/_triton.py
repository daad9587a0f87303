"""The one file that touches Triton's internals."""

import dataclasses
import os

KNOWN_VERSIONS = ("3.6.0", "3.7.1", "3.9.0")


class _Driver:
    """Stands in for a GPU driver: what Triton and NineToothed ask of it while they make kernels."""

    def get_current_device(self):
        return 0

    def get_active_torch_device(self):
        import torch

        return torch.device("cpu")

    @property
    def utils(self):
        return self

    def get_device_properties(self, device):
        return {"max_shared_mem": 232448, "multiprocessor_count": 1, "warpSize": 32}

    def get_benchmarker(self):
        # An autotuned kernel takes its first configuration: timings under an interpreter say nothing.
        return lambda kernel_call, quantiles: [0.0 for _ in quantiles]


def install():
    os.environ.setdefault("TRITON_INTERPRET", "1")

    import triton
    from triton.runtime import interpreter

    if triton.__version__ not in KNOWN_VERSIONS:
        raise ImportError(
            f"ntops.interpreter is known to work with Triton {', '.join(KNOWN_VERSIONS)}, and this is "
            f"{triton.__version__}: install one of those"
        )

    if not isinstance(triton.language.sum, interpreter.InterpretedFunction):
        raise ImportError(
            "triton was imported before TRITON_INTERPRET=1 was set, so its own functions are compiled: import ntops "
            "(or call ntops.interpreter.install()) first, or set TRITON_INTERPRET=1 before Python starts"
        )

    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)

    try:
        triton.runtime.driver.active
    except RuntimeError:
        triton.runtime.driver.set_active(_Driver())
