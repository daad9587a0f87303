from ntops.host.families import comparison

ge = comparison("ge", "input >= other")
