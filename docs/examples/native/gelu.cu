// gelu in its tanh form, of float32: torch's signature is in gelu_cuda.py, which builds this file.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <string>

__global__ void gelu_kernel(const float* input, float* output, int64_t n) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) {
    const float x = input[i];
    output[i] = 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
  }
}

at::Tensor gelu(const at::Tensor& input, const std::string& approximate) {
  TORCH_CHECK(approximate == "tanh" || approximate == "none", "approximate argument must be either none or tanh.");
  TORCH_CHECK_NOT_IMPLEMENTED(approximate == "tanh" && input.scalar_type() == at::kFloat, "tanh form of float32 only");
  // A tensor may be a lazy negation of its memory (t.imag of a conjugate), which a kernel would not see.
  const auto dense = input.resolve_neg().contiguous();
  auto output = at::empty_like(dense);
  const int64_t n = dense.numel();
  if (n > 0) {
    constexpr int threads = 256;
    gelu_kernel<<<(n + threads - 1) / threads, threads, 0, c10::cuda::getCurrentCUDAStream()>>>(
        dense.data_ptr<float>(), output.data_ptr<float>(), n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
  return output;
}
