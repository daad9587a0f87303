from ntops.host.families import floating

rsqrt = floating("rsqrt", "1 / sqrt(input)", gradient="rsqrt")
