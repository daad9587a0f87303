"""Where kernels run, decided once at import: compiled on CUDA, or under Triton's interpreter on CPU tensors."""

import contextlib
import os
import sys
import threading

from ntops import interpreter


def _cuda_is_present() -> bool:
    # NVML answers without making a CUDA context, so that importing ntops touches no GPU.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    return torch.cuda.is_available()


def _choose() -> bool:
    """True if kernels are interpreted. A user's own TRITON_INTERPRET decides; else the absence of CUDA does."""
    asked = os.environ.get("TRITON_INTERPRET")
    interpreted = asked.lower() in ("1", "true", "on", "yes", "y") if asked else not _cuda_is_present()
    if interpreted and not asked:
        if "triton" in sys.modules:
            # Triton's own library functions were decorated for compilation when it was imported.
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
    # Processes that make kernels at the same time share the folder of their sources.
    interpreter.prepare_ninetoothed()


def read_compiler() -> None:
    """Begin to hash Triton's files, in a thread.

    Triton names compiled kernels by that hash, of 440 MB, and the first launch of a process waits for it (0.8 s on a
    core of CI's machine, 0.3 s where the files are in memory). Most programs make a CUDA context and their tensors
    before, which leaves the time; a launch that comes earlier hashes for itself, as it would have.
    """
    from triton.runtime import cache

    # Triton keeps what it found. A version that has none hashes otherwise.
    if not INTERPRETED and (key := getattr(cache, "triton_key", None)):
        threading.Thread(target=_quietly, args=(key,), name="ntops-triton-key", daemon=True).start()


def _quietly(function):
    # What is wrong with Triton's files is for the launch to say.
    with contextlib.suppress(Exception):
        function()
