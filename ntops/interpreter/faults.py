"""What is said about a kernel that does what it must not."""


class MemoryFault(Exception):
    """A kernel touched memory that it must not touch, or left out what it must write."""


class Argument:
    """A tensor that was passed to a kernel, under the name of its parameter."""

    def __init__(self, name, tensor):
        self.name = name
        self.tensor = tensor


# The code of kernel functions as rewritten, without those of Triton's own library.
kernel_codes = set()


def kernel_line(traceback=None, frame=None):
    """``file:line`` of the innermost kernel code of a traceback, or of the stack below ``frame``."""
    line = None

    while traceback is not None:
        if _is_kernel(traceback.tb_frame):
            line = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"

        traceback = traceback.tb_next

    while frame is not None and line is None:
        if _is_kernel(frame):
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"

        frame = frame.f_back

    return line


def _is_kernel(frame):
    return frame.f_code in kernel_codes
