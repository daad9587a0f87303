import math

import torch

from ntops.torch.add import add
from ntops.torch.dequantize_fp8 import dequantize_fp8
from ntops.torch.fp8_gemm import fp8_gemm
from ntops.torch.quantize_fp8 import quantize_fp8


class FP8Linear(torch.nn.Module):
    """``x @ (weight * weight_scale).T + bias`` with an 8-bit weight; rows of ``x`` are quantized at each call.

    ``weight`` is float8_e4m3fn, (out_features, in_features), ``weight_scale`` float32, (out_features, 1): both are
    buffers, in the ``state_dict``, and keep their dtypes whatever the module is cast to. The product is
    :func:`ntops.torch.fp8_gemm`'s. It has no gradient: call it under :class:`torch.no_grad`.

    :param in_features: The size of the rows of ``x``.
    :param out_features: The size of the rows of the result.
    :param bias: Whether the layer has a bias.
    :param dtype: The dtype of the bias; by default torch's default dtype.
    """

    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.register_buffer("weight", torch.empty(out_features, in_features, device=device).to(torch.float8_e4m3fn))
        self.register_buffer("weight_scale", torch.empty(out_features, 1, device=device, dtype=torch.float32))
        self.bias = torch.nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @classmethod
    def from_linear(cls, linear):
        """Return a module with the weight of a linear layer, quantized on its device, and the layer's own bias, not a
        copy.

        :param linear: A :class:`torch.nn.Linear` of float16, bfloat16 or float32, on a device where kernels run.
        :raises TypeError: It is not a linear layer.
        """
        if not isinstance(linear, torch.nn.Linear):
            raise TypeError(f"argument 'linear' must be a torch.nn.Linear, not {type(linear).__name__}")

        module = cls(linear.in_features, linear.out_features, bias=False, device="meta")
        module.weight, module.weight_scale = quantize_fp8(linear.weight.detach(), granularity="row")
        module.bias = linear.bias

        return module.train(linear.training)

    def to_linear(self, dtype=None):
        """Return a :class:`torch.nn.Linear` with the dequantized weight and this module's own bias.

        The weight lacks what quantization has rounded away; keep the original layer if you need it.

        :param dtype: The dtype of the weight; by default that of the bias, or torch's default dtype.
        """
        dtype = dtype or (torch.get_default_dtype() if self.bias is None else self.bias.dtype)
        linear = torch.nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = torch.nn.Parameter(dequantize_fp8(self.weight, self.weight_scale, dtype))
        linear.register_parameter("bias", self.bias)

        return linear.train(self.training)

    def reset_parameters(self):
        """Draw new weights as :class:`torch.nn.Linear` does, uniform within 1 / sqrt(in_features)."""
        largest = torch.finfo(self.weight.dtype).max
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        self.weight.copy_(torch.empty(self.weight.shape, device=self.weight.device).uniform_(-largest, largest))
        self.weight_scale.fill_(bound / largest)

        if self.bias is not None:
            torch.nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x):
        """Return (..., out_features) for ``x``, (..., in_features), of float16, bfloat16 or float32; the dtype
        stays."""
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        result = fp8_gemm(rows, self.weight.mT, None, self.weight_scale.mT, x.dtype)

        if self.bias is not None:
            add(result, self.bias, out=result)

        return result.view(*x.shape[:-1], self.out_features)

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _apply(self, fn, recurse=True):
        """Move the module; a cast changes the bias only."""
        weight, scale = self.weight, self.weight_scale
        super()._apply(fn, recurse)

        if self.weight.dtype is not weight.dtype:
            self.weight = weight.to(self.weight.device)

        if self.weight_scale.dtype is not scale.dtype:
            self.weight_scale = scale.to(self.weight_scale.device)

        return self

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        weight = state_dict.get(f"{prefix}weight")

        if weight is not None and weight.dtype is not self.weight.dtype:
            # The weight would be cast without its scales.
            error_msgs.append(
                f"{prefix}weight is {weight.dtype}, not {self.weight.dtype}: load it into a torch.nn.Linear, and make "
                "this module with FP8Linear.from_linear"
            )
            return

        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
