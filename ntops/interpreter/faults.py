"""What is said about a kernel that does what it must not."""

import dataclasses


@dataclasses.dataclass(eq=False)
class MemoryFault(Exception):
    """A kernel touched memory that it must not touch, or left out what it must write.

    ``kind`` is ``"outside"``, ``"race"``, ``"unwritten"`` (an element that should have been written never was),
    ``"uninitialized"`` (a load of one) or ``"input"`` (a store to what was only to be read). What is not known of the
    rest is ``None``; ``index`` is that of the element in the argument, or its distance in elements from the first one
    where it is none of the argument's.
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


# The code of kernel functions as rewritten, without those of Triton's own library.
kernel_codes = set()


def kernel_line(traceback=None, frame=None):
    """``file:line`` of the innermost kernel code of a traceback, or of the stack below ``frame``."""
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
