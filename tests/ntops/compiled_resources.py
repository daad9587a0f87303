"""What configurations take of a multiprocessor, estimated and as compiled for sm_90: a line of JSON for each.

Run as a script, with configurations ``[[op, shape, dtype, options], ...]`` as JSON on standard input; ``null`` for
options means all of the space, whether they fit or not. A process in which kernels are compiled interprets none.
"""

import dataclasses
import json
import sys

import torch

from conformance import compilation

TARGET = compilation.TARGETS["sm_90"]


def main() -> None:
    compilation.prepare()
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(compilation._Driver(TARGET))
    from ntops.launch import config_selection
    from ntops.tune import operators

    launches = []
    compile_ = JITFunction.run

    def catch(self, *args, grid, warmup, **kwargs):
        launches.append((self, args, kwargs))

    for op, shape, dtype, options in json.load(sys.stdin):
        task = operators.task(op, shape, dtype)
        args, kwargs = task.inputs(torch.empty)
        kernel, problem = task.asked(args, kwargs)

        for one in [problem.OPTIONS(**options)] if options else problem.space(config_selection.device(0)):
            launches.clear()
            JITFunction.run = catch
            task.forced(kernel, one)(*args, **kwargs)
            JITFunction.run = compile_
            function, given, keywords = launches[0]
            found = {"op": op, "dtype": dtype, "options": dataclasses.asdict(one)}

            try:
                compiled = function.warmup(*given, grid=(1, 1, 1), **keywords)
                registers, spills = compilation._resources(compiled, TARGET)
                found |= {"shared": compiled.metadata.shared, "registers": registers, "spills": spills}
            except Exception as error:  # noqa: BLE001  (whatever the compiler raises is the result)
                found |= {"error": f"{type(error).__name__}: {error}"[:300]}

            found["estimate"] = dataclasses.asdict(problem.resources(one))
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
