"""A CUDA kernel as an implementation.

python -m pytest conformance --implementation docs/examples/native/gelu_cuda.py --op gelu --import-timeout 600
"""

from conformance.implementations.native_source import native

gelu = native("gelu.cu", 'gelu(Tensor input, str approximate="none") -> Tensor')
conformance_left_out = {"gelu": "the tanh form of float32 alone"}
