// SPDX-License-Identifier: Apache-2.0
// One way to start a kernel. By the runtime's function, which returns the error of this launch; the
// arrow syntax would report one that somebody else left behind.
#pragma once

#include <cuda_runtime.h>

#include "optim/cuda/launch_arguments.hpp"

namespace vsr::optim::detail {

template <typename Launch>
int start_kernel(void (*kernel)(Launch), const Launch& a, int teams, CUstream_st* stream) {
  void* arguments[] = {const_cast<Launch*>(&a)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(teams)),
                          dim3(kTeamThreads), arguments, 0, stream);
}

}  // namespace vsr::optim::detail
