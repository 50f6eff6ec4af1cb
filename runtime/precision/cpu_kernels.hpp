// SPDX-License-Identifier: Apache-2.0
// LibTorch on a CPU without FP16 arithmetic takes 20 to 200 times longer for an FP16 convolution
// than for an FP32 one. These kernels take its place: they compute in FP32 with LibTorch's own
// routines and round the result once, which is what a tensor core does and costs about what FP32
// costs.
#pragma once

namespace vsr::runtime {

/// For which dtypes the kernels are replaced. `where_slow`: FP16, and BF16 unless the CPU
/// multiplies BF16 itself (AVX-512 BF16, AMX), where LibTorch takes about 0.6 of the time of FP32
/// and sums in FP32 too. `always`: both; for comparisons and tests.
enum class HalfKernels { where_slow, always };

/// Replace convolution (forward and backward, 1-D to 3-D, grouped, dilated, transposed), mm, addmm
/// and bmm for FP16 and BF16 tensors on the CPU, in the whole process.
///
/// Numerics: FP16 or BF16 storage, FP32 arithmetic, one rounding of each result to nearest even.
/// FP32, FP64 and all other tensors, and all devices but the CPU, take LibTorch's kernels as
/// before. Element-wise operations are left alone: LibTorch computes them in FP32 already, as fast.
/// Deterministic: depends on nothing but the inputs, their shapes, the instruction set and the
/// number of threads. Call it once at program start, before threads that compute; the first call
/// decides, later ones do nothing. Thread-safe. Not to be undone.
/// @throws c10::Error when this LibTorch lacks one of the operations
void install_cpu_half_kernels(HalfKernels which = HalfKernels::where_slow);

/// True when this CPU has BF16 products of its own, so that `where_slow` leaves BF16 to LibTorch.
bool cpu_has_bf16();

}  // namespace vsr::runtime
