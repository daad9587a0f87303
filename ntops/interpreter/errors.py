"""Errors for kernels that access memory that they must not access."""

import dataclasses


@dataclasses.dataclass(eq=False)
class MemoryFault(Exception):
    """A kernel accessed memory that it must not access, or did not write what it must write.

    ``kind`` is ``"outside"``, ``"race"``, ``"unwritten"`` (an element that should have been written never was),
    ``"uninitialized"`` (a load of such an element) or ``"input"`` (a store to a read-only argument). Other unknown
    fields are ``None``; ``index`` is the element's index in the argument, or its distance in elements from the first
    one if it is outside of the argument.
    """

    kind: str
    message: str
    kernel: str | None = None
    line: str | None = None
    argument: str | None = None
    index: tuple[int, ...] | int | None = None
    program: tuple[int, ...] | None = None
    lane: tuple[int, ...] | None = None

    def __str__(self):
        where = f"{self.kernel} at {self.line}: " if self.line else f"{self.kernel}: " if self.kernel else ""
        who = f"program {self.program}, lane {self.lane}: " if self.program is not None else ""

        return f"{where}{who}{self.message}"


# The code objects of rewritten kernel functions, without those of Triton's own library.
kernel_codes = set()


def kernel_line(traceback=None, frame=None):
    """Return ``file:line`` of the innermost kernel code of a traceback, or of the stack below ``frame``."""
    line = None

    while traceback is not None:
        if traceback.tb_frame.f_code in kernel_codes:
            line = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"

        traceback = traceback.tb_next

    while frame is not None and line is None:
        if frame.f_code in kernel_codes:
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"

        frame = frame.f_back

    return line
