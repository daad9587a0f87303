from ntops.host.families import floating

cos = floating("cos", "cos(input)", ", in radians,", gradient="cos")
