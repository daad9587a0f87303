"""Say in words how a case is differentiated."""

from conformance import gradient_calls
from conformance.cases import Same
from conformance.checks.gradient_kinds import Wish
from strategies import layouts


def told(way: Wish) -> str:
    """Say in words which gradients are asked for."""
    operands = ", ".join(map(str, way.wanted))
    strides = list(layouts.strides(way.dout.layout, way.dout.shape))
    changed = "the result" if way.overwritten == -1 else f"operand {way.overwritten}"
    rewritten = ", whose result is changed in place after it"
    how = {
        "twice": ", twice from one graph",
        "overwritten": f", of {changed} changed in place after the call",
        "between": ", between calls with other contents, in another thread",
        "accumulated": ", added up in .grad",
        "second order": ", each times 1 plus the result, and theirs",
        "in place": f", of the call in place{', of a view' * way.view}{rewritten * (way.overwritten is not None)}",
        "both": ", of two results of the same operands at once",
        "chained": ", and of a call of the result",
        "shared": ", of a result to which another tensor is added",
        "negated": ", lazily negated",
    }
    origin = {"leaf": "", "parameter": ", parameters", "result": ", results of another operator"}[way.origin]
    before = {
        gradient_calls.FROZEN: "differentiated, operand {first} frozen",
        gradient_calls.STEPPED: "of other contents differentiated",
    }.get(way.evaluated, f"under {way.evaluated}")
    evaluated = f", after the same call {before.format(first=way.wanted[0])}" if way.evaluated else ""
    values = f"{way.dout.dtype}{list(way.dout.shape)} strides {strides}, {way.dout.values}, seed {way.dout.seed}"
    values += "".join(f", {special.value} at {special.index}" for special in way.dout.specials)
    under = "".join(f", {name}={value}" for name, value in way.settings.items())
    tied = next((argument for argument in way.case.args if isinstance(argument, Same)), None)
    count = "two" if sum(isinstance(argument, Same) for argument in way.case.args) < 2 else "all"
    one = "" if tied is None else f", {count} operands one tensor{', the second turned' * tied.turned}"
    one += f", of the call in the form {way.case.form!r}" if way.case.form else ""
    one += f", beside {', '.join(map(str, way.unasked))}, which require one as well" if way.unasked else ""
    saved = {"": "", "elsewhere": ", of saved tensors kept as dense copies", "checkpoint": ", checkpointed"}[way.saved]
    how_made = f"{origin}{how.get(way.kind, '')}{evaluated}{saved}{under}"
    return f"gradients of operands {operands}{one}{how_made}, for that of the result {values}"
