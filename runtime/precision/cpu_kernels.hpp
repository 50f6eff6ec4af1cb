// SPDX-License-Identifier: Apache-2.0
// LibTorch on a CPU without FP16 arithmetic takes 20 to 200 times longer for an FP16 convolution
// than for an FP32 one. These kernels take its place: they compute in FP32 with LibTorch's own
// routines and round the result once, which is what a tensor core does and costs about what FP32
// costs.
#pragma once

namespace vsr::runtime {

/// Replace convolution (forward and backward, 1-D to 3-D, grouped, dilated, transposed), mm, addmm,
/// bmm and the activations of our networks for FP16 and BF16 tensors on the CPU, in the whole
/// process.
///
/// Numerics: FP16 or BF16 storage, FP32 arithmetic, one rounding of each result to nearest even.
/// FP32, FP64 and all other tensors, and all devices but the CPU, take LibTorch's kernels as
/// before. Deterministic: depends on nothing but the inputs, their shapes and the number of
/// threads. Call it once at program start; later calls do nothing; thread-safe. Not to be undone.
/// @throws c10::Error when this LibTorch lacks one of the operations
void install_cpu_half_kernels();

}  // namespace vsr::runtime
