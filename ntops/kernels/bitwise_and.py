"""``input & other``, elementwise; logical on bools."""

from ntops.kernels.expressions import bitwise

arrangement, application, premake = bitwise(lambda input, other: input & other)
