"""``isnan(input)``, elementwise."""

from ntops.kernels import constants
from ntops.kernels.expressions import plain

arrangement, application, premake = plain(lambda input: input != input, result=constants.boolean)
