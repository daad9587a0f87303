from ntops.host.families import bitwise

bitwise_and = bitwise("bitwise_and", "input & other")
