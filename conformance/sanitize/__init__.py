"""Run an implementation's kernels on saved cases under compute-sanitizer: ``python -m conformance.sanitize``."""
