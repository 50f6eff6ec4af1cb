// SPDX-License-Identifier: Apache-2.0
// The kernels compiled with the flags of scalar; see optim/CMakeLists.txt.
#define VSR_KERNEL_TABLE kScalarKernels
#include "optim/kernel_loops.inl"
