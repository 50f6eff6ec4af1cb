// SPDX-License-Identifier: Apache-2.0
// The kernels compiled with the flags of avx512; see optim/CMakeLists.txt.
#define VSR_KERNEL_TABLE kAvx512Kernels
#include "optim/kernel_loops.inl"
