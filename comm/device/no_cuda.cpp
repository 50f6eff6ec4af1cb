// SPDX-License-Identifier: Apache-2.0
// What builds without CUDA say in place of the files beside it.
#include "comm/device/nccl_functions.hpp"
#include "comm/error.hpp"

namespace vsr::comm {

VisibleDevices find_devices() {
  return {0, "this build lacks CUDA (VSR_WITH_CUDA=OFF)"};
}

std::unique_ptr<Device> open_device(int) {
  throw NotCompiled("backend nccl (the MPI backend does the same: --backend mpi)", "CUDA");
}

const NcclFunctions& nccl_library() {
  throw NotCompiled("backend nccl (the MPI backend does the same: --backend mpi)", "NCCL");
}

}  // namespace vsr::comm
