"""Rows of a workload: the saved calls of a model, with the elements that they had there."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from conformance import case_files, cases, corpus
from conformance import spec as specs
from conformance.benchmarks import _rows
from conformance.cases import Case, CaseError
from conformance.spec import Benchmark, OpSpec
from strategies import dtypes as dtype_names
from strategies.specs import TensorSpec
from strategies.tensors import materialize


def rows(
    folders: Sequence[Path], ops: Sequence[str], dtypes: Sequence[str], max_elements: int
) -> dict[str, tuple[OpSpec, Benchmark]]:
    """Return the saved cases of these ops and dtypes (no names: all) as rows by name, those of one op together.

    Cases that are alike but for floating-point elements, as those of a model's layers are, are one row. Where integers
    or bools differ (lengths, masks), the case's id is part of the name.

    :raises ValueError: A case cannot be read or has too many elements, or no case can be timed. Calls that write to
        their operands, or follow from a case, are left out.
    """
    corpus.find_data(folders)
    found: dict[str, tuple[OpSpec, Benchmark]] = {}
    kinds: set[tuple[Any, ...]] = set()
    for path in corpus.files(folders):
        try:
            case = case_files.read(path, max_elements=max_elements)
        except CaseError as error:
            raise ValueError(f"{path}: {error}") from None
        spec = specs.registry()[case.op]
        unnamed = (ops and case.op not in ops) or (dtypes and cases.dtype_of(case) not in dtypes)
        if unnamed or case.form or spec.writes(case) or "out" in case.kwargs:
            continue
        # The label is of the case alone.
        name = _rows.identity(Benchmark(case, 0, 0))
        kind = name, *(one.values for one in cases.operands(case) if one.dtype not in dtype_names.FLOATING)
        if kind not in kinds:
            kinds.add(kind)
            name += f" {cases.case_id(case).rpartition('-')[2]}" if name in found else ""
            found[name] = spec, Benchmark(case, *least(spec, case))
    if not found:
        raise ValueError(f"no saved call in {', '.join(map(str, folders))} can be timed")
    return dict(sorted(found.items(), key=lambda item: item[1][0].name))


def least(spec: OpSpec, case: Case) -> tuple[int, int]:
    """Return the bytes that a call has to move, each element of its operands and results once, and the operations of
    its products as ``torch.utils.flop_counter`` counts them."""
    operands = cases.operands(case)
    tensors = [_meta(one) for one in operands]
    moved = sum(_stored(one) * tensor.element_size() for one, tensor in zip(operands, tensors, strict=True))
    results, flops = _result(spec, case, tensors)
    return moved + sum(one.numel() * one.element_size() for one in results), flops


def _stored(one: TensorSpec) -> int:
    return math.prod(size for dim, size in enumerate(one.shape) if dim not in one.layout.expanded)


def _meta(one: TensorSpec) -> torch.Tensor:
    return torch.empty(one.shape, dtype=dtype_names.to_torch(one.dtype), device="meta")


def _result(spec: OpSpec, case: Case, tensors: Sequence[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], int]:
    # Imports Triton, which ntops has to prepare before.
    from torch.utils.flop_counter import FlopCounterMode

    args, kwargs = cases.bind(case, tensors)
    with warnings.catch_warnings(action="ignore"), FlopCounterMode(display=False) as counter:
        try:
            value: Any = spec.reference(*args, **kwargs)
        # A reference may look at elements, which meta tensors have not.
        except Exception:  # noqa: BLE001
            operands = enumerate(cases.operands(case))
            args, kwargs = cases.bind(case, [materialize(one, place) for place, one in operands])
            value = spec.reference(*args, **kwargs)
    return value if isinstance(value, tuple) else (value,), counter.get_total_flops()
