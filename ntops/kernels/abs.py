"""``abs(input)``, elementwise; the lowest integer stays itself."""

from ntops.kernels.expressions import ntl, plain

arrangement, application, premake = plain(lambda input: ntl.abs(input))
