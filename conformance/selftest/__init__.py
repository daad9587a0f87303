"""Does the judge catch what it should, and nothing else? Planted defects, and correct implementations as controls.

``bank.py`` says what a defect is; the modules beside it hold them, a family each. ``python -m conformance.selftest``.
"""
