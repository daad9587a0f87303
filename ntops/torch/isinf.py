import torch

from ntops.host.families import question

# No integer is infinite in float32.
isinf = question("isinf", "infinite", lambda dtype: torch.float64 if dtype is torch.float64 else torch.float32)
