"""An implementation's kernels, run on saved cases under compute-sanitizer: ``python -m conformance.sanitize``."""
