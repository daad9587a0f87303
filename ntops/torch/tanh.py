from ntops.host.families import floating

tanh = floating("tanh", "tanh(input)", gradient="tanh")
