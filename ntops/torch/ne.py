from ntops.host.families import comparison

ne = comparison("ne", "input != other")
