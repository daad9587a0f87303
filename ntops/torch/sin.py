from ntops.host.families import floating

sin = floating("sin", "sin(input)", ", in radians,", gradient="sin")
