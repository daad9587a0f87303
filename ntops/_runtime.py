"""Choose once, at import, where kernels run: compiled on CUDA, or under Triton's interpreter on CPU tensors."""

import os
import sys

from ntops import interpreter


def _cuda_is_present() -> bool:
    # NVML needs no CUDA context, so that importing ntops touches no GPU.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    return torch.cuda.is_available()


def _choose() -> bool:
    """Return whether kernels are interpreted: TRITON_INTERPRET decides if it is set, else the absence of CUDA."""
    asked = os.environ.get("TRITON_INTERPRET")
    interpreted = asked.lower() in ("1", "true", "on", "yes", "y") if asked else not _cuda_is_present()
    if interpreted and not asked:
        if "triton" in sys.modules:
            # Triton decorates its own library functions for compilation when it is imported.
            raise ImportError(
                "there is no CUDA device, so ntops needs Triton's interpreter, but triton was imported first: "
                "import ntops before triton, or set TRITON_INTERPRET=1 before Python starts"
            )
        os.environ["TRITON_INTERPRET"] = "1"
    return interpreted


INTERPRETED = _choose()

if INTERPRETED:
    interpreter.install()
else:
    # Processes that make kernels at the same time share the folder of generated sources.
    interpreter.prepare_ninetoothed()
