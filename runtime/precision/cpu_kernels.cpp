// SPDX-License-Identifier: Apache-2.0
// Convolutions and matrix products. Each function below is what the dispatcher calls on the CPU
// from the moment of installation; every input that is not FP16 or BF16 goes straight to the
// function that stood there before.
#include "runtime/precision/cpu_kernels.hpp"

#include <ATen/native/Resize.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

namespace vsr::runtime {
namespace {

using at::IntArrayRef;
using at::Scalar;
using at::Tensor;

// Set once, before the registration that makes any reader possible.
bool replace_bf16 = false;

bool is_replaced(at::ScalarType dtype) {
  return dtype == at::kHalf || (dtype == at::kBFloat16 && replace_bf16);
}

/// Every tensor has the same reduced dtype; a mixture is LibTorch's to refuse, in its own words.
template <class... Tensors>
bool all_replaced(const Tensor& first, const Tensors&... others) {
  return is_replaced(first.scalar_type()) && (... && (others.scalar_type() == first.scalar_type()));
}

Tensor wide(const Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kFloat) : tensor;
}

Tensor narrow(const Tensor& tensor, const Tensor& like) {
  return tensor.defined() ? tensor.to(like.scalar_type()) : tensor;
}

Tensor& assign(Tensor& out, const Tensor& result) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  namespace stock = at::compositeexplicitautograd;
  const bool has_bias = bias && bias->defined();
  if (!all_replaced(input, weight) || (has_bias && !all_replaced(input, *bias)))
    return stock::convolution(input, weight, bias, stride, padding, dilation, transposed,
                              output_padding, groups);
  const std::optional<Tensor> wide_bias = has_bias ? std::optional(wide(*bias)) : std::nullopt;
  return narrow(stock::convolution(wide(input), wide(weight), wide_bias, stride, padding, dilation,
                                   transposed, output_padding, groups),
                input);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad_output,
                                                        const Tensor& input, const Tensor& weight,
                                                        at::OptionalIntArrayRef bias_sizes,
                                                        IntArrayRef stride, IntArrayRef padding,
                                                        IntArrayRef dilation, bool transposed,
                                                        IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> output_mask) {
  namespace stock = at::compositeexplicitautograd;
  if (!all_replaced(grad_output, input, weight))
    return stock::convolution_backward(grad_output, input, weight, bias_sizes, stride, padding,
                                       dilation, transposed, output_padding, groups, output_mask);
  const auto [grad_input, grad_weight, grad_bias] = stock::convolution_backward(
      wide(grad_output), wide(input), wide(weight), bias_sizes, stride, padding, dilation,
      transposed, output_padding, groups, output_mask);
  return {narrow(grad_input, input), narrow(grad_weight, input), narrow(grad_bias, input)};
}

Tensor mm(const Tensor& a, const Tensor& b) {
  if (!all_replaced(a, b)) return at::cpu::mm(a, b);
  return narrow(at::cpu::mm(wide(a), wide(b)), a);
}

Tensor& mm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!all_replaced(a, b, out)) return at::cpu::mm_outf(a, b, out);
  return assign(out, at::cpu::mm(wide(a), wide(b)));
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  if (!all_replaced(a, b)) return at::cpu::bmm(a, b);
  return narrow(at::cpu::bmm(wide(a), wide(b)), a);
}

Tensor& bmm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!all_replaced(a, b, out)) return at::cpu::bmm_outf(a, b, out);
  return assign(out, at::cpu::bmm(wide(a), wide(b)));
}

Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
             const Scalar& alpha) {
  if (!all_replaced(self, a, b)) return at::cpu::addmm(self, a, b, beta, alpha);
  return narrow(at::cpu::addmm(wide(self), wide(a), wide(b), beta, alpha), a);
}

Tensor& addmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  if (!all_replaced(self, a, b, out)) return at::cpu::addmm_outf(self, a, b, beta, alpha, out);
  return assign(out, at::cpu::addmm(wide(self), wide(a), wide(b), beta, alpha));
}

/// Swallows the one warning that replacing a kernel on purpose causes; passes on all others.
class WithoutOverrideWarning : public c10::WarningHandler {
 public:
  WithoutOverrideWarning() : former_(c10::WarningUtils::get_warning_handler()) {}
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("previously registered kernel") == std::string::npos)
      former_->process(warning);
  }

 private:
  c10::WarningHandler* former_;
};

void install(HalfKernels which) {
  replace_bf16 = which == HalfKernels::always || !cpu_has_bf16();
  WithoutOverrideWarning handler;
  c10::WarningUtils::WarningHandlerGuard guard(&handler);
  // Never destroyed: the dispatcher may be asked until the last static object is gone.
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("convolution", TORCH_FN(convolution));
  library->impl("convolution_backward", TORCH_FN(convolution_backward));
  library->impl("mm", TORCH_FN(mm));
  library->impl("mm.out", TORCH_FN(mm_out));
  library->impl("bmm", TORCH_FN(bmm));
  library->impl("bmm.out", TORCH_FN(bmm_out));
  library->impl("addmm", TORCH_FN(addmm));
  library->impl("addmm.out", TORCH_FN(addmm_out));
}

}  // namespace

bool cpu_has_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") > 0;  // CPUs with AMX have it too
#else
  return false;
#endif
}

void install_cpu_half_kernels(HalfKernels which) {
  static std::once_flag once;
  std::call_once(once, install, which);
}

}  // namespace vsr::runtime
