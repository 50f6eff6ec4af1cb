// SPDX-License-Identifier: Apache-2.0
// The kernels compiled with the flags of avx2; see optim/CMakeLists.txt.
#define VSR_KERNEL_TABLE kAvx2Kernels
#include "optim/kernel_loops.inl"
