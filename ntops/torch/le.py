from ntops.host.families import comparison

le = comparison("le", "input <= other")
