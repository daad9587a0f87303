"""``input <= other``, elementwise."""

from ntops.kernels.expressions import comparison

arrangement, application, premake = comparison(lambda input, other: input <= other)
