from ntops.host.families import comparison

lt = comparison("lt", "input < other")
