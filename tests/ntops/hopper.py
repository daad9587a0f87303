"""What tests of the kernels for Hopper share."""

import pytest
import torch

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
hopper = pytest.mark.skipif(not IS_HOPPER, reason="they are compiled for an H100 or H200 alone")
