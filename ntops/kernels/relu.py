"""``max(input, 0)``, elementwise, keeping NaN."""

from ntops.kernels.expressions import ntl, plain

# A comparison with NaN is false, so NaN stays; Triton's maximum may drop it.
arrangement, application, premake = plain(lambda input: ntl.where(input <= 0, 0, input), rounded=True)
