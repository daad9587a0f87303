"""``input * other``, elementwise."""

from ntops.kernels.expressions import kernel

arrangement, application, premake = kernel(lambda input, other: input * other, rounded=True)
