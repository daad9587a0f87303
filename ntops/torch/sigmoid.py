from ntops.host.families import floating

sigmoid = floating("sigmoid", "1 / (1 + exp(-input))", gradient="sigmoid")
