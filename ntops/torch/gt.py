from ntops.host.families import comparison

gt = comparison("gt", "input > other")
