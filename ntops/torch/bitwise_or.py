from ntops.host.families import bitwise

bitwise_or = bitwise("bitwise_or", "input | other")
