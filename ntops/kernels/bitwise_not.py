"""``~input``, elementwise; logical on bools."""

from ntops.kernels.expressions import plain

arrangement, application, premake = plain(lambda input: ~input)
