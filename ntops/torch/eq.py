from ntops.host.families import comparison

eq = comparison("eq", "input == other", note=" (so uint8 255 equals -1)")
