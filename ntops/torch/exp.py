from ntops.host.families import floating

exp = floating("exp", "exp(input)", gradient=("scaled", {"scale": "result"}))
