"""What the tests of choosing and measuring configurations share."""

from __future__ import annotations

import dataclasses

import torch

from ntops.host import product_configs
from ntops.launch import config_selection, tuned_tables

H200 = config_selection.Device(shared_memory=232448, multiprocessors=132)
GPU = "Test GPU 1"
PROBLEM = product_configs.Problem(4096, 4096, 4096, torch.bfloat16, False)
SMALL = product_configs.Options(64, 64, 32, 4, 2)


def record(problem=PROBLEM, options=SMALL, kernel="mm", **fields):
    fields = {"seconds": 1e-4, "share": 0.5} | fields
    return tuned_tables.Record(kernel, problem.kind(), problem.sizes(), dataclasses.asdict(options), **fields)
