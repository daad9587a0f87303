"""Counts travel between processes as JSON, and nothing of them is lost there."""

from __future__ import annotations

import math
import sys

import msgspec

from conformance import metrics
from conformance.cases import Case
from conformance.checks import PASSED, Finding
from conformance.metrics import Record, Tally
from conformance.runner import Verdict
from strategies.specs import TensorSpec


def test_an_infinite_share_of_torch_survives_json():
    case = Case(op="gelu", args=(TensorSpec((2,), "float32"),))
    verdict = Verdict("gelu-0", "gelu", PASSED, (Finding("values", PASSED, share=0.25, torch_share=math.inf),))
    tally = Tally()
    tally.add(case, verdict)
    sent = msgspec.json.encode(tally.sorted())
    merged = Tally(msgspec.json.decode(sent, type=list[Record]))
    (record,) = merged.sorted()
    assert record.worst.share == 0.25
    assert record.worst.torch_share == record.torch_largest == sys.float_info.max
    assert b"null" not in metrics.document([record], {}).partition(b'"worst"')[2].partition(b'"case"')[0]
    assert "inf" in "\n".join(metrics.table(merged.sorted()))
