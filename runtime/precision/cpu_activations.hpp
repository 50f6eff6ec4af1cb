// SPDX-License-Identifier: Apache-2.0
// The element-wise half of the CPU kernels, apart from convolutions because it holds loops of its
// own where those call LibTorch.
#pragma once

#include <torch/library.h>
#include <torch/torch.h>

namespace vsr::runtime {

/// True for a dense FP16 or BF16 tensor.
inline bool is_reduced(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

/// Add the activations to the registrations of `library`; part of install_cpu_half_kernels.
void register_activations(torch::Library& library);

}  // namespace vsr::runtime
