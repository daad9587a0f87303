from ntops.host.families import Refusal, exact

_MESSAGE = "argument 'input' has dtype {dtype}; bitwise functions take integers and bools"

bitwise_not = exact("bitwise_not", "~input", refused=Refusal("floating-point", NotImplementedError, _MESSAGE))
