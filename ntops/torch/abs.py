from ntops.host.families import exact

abs = exact("abs", "abs(input)", gradient="abs")
