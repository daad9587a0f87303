from ntops.host.families import Refusal, exact

neg = exact(
    "neg",
    "-input",
    refused=Refusal("bool", RuntimeError, "argument 'input' is bool, which has no negative; use bitwise_not"),
    gradient=("scaled", {"scale": -1.0}),
    arguments=lambda dtype: {"floating": dtype.is_floating_point},
)
