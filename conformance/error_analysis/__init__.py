"""Derive the bound of a result from its reference: a running error analysis.

The reference runs once, on pairs: the value in float64, and how far a right implementation in float32 may be from it
there (J. H. Wilkinson, Rounding Errors in Algebraic Processes, 1963; N. J. Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., 3.3 "Running error analysis" and 4.2 on sums). ``rules`` has what each operation of torch adds.

A right implementation computes in float32 where operands are float16, bfloat16 or float8, else in their dtype. Each
operation of the reference loses what its rule says, or less, as where several are fused. Where the reference casts
explicitly an implementation may round, or not. An element is not judged where a value on the way leaves the range of
the dtype that is computed in, or where the error may decide a comparison or an index.
"""

from __future__ import annotations

from conformance.error_analysis import rules
from conformance.error_analysis.pairs import Analysis, NoRule, analyse

__all__ = ["Analysis", "NoRule", "analyse", "rules"]
