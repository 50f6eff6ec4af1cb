// SPDX-License-Identifier: Apache-2.0
// A program that brings LibTorch's CUDA library, which brings an NCCL of its own, and ours beside
// it: both load, work as far as that goes without a GPU, and the program ends cleanly under mpirun.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "comm/device/nccl_functions.hpp"
#include "comm/error.hpp"
#include "tests/support/mpi_world.hpp"

namespace vsr::comm {
namespace {

TEST(CudaLibrary, LibTorchsAndOursLoadBesideEachOther) {
  void* const torch = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  if (torch == nullptr) GTEST_SKIP() << "skipped: " << dlerror();
  try {
    EXPECT_EQ(std::string(nccl_library().error_text(NcclResult::success)), "no error");
    EXPECT_NE(std::string(nccl_library().error_text(NcclResult::remote_error)), "no error");
  } catch (const Error& error) {
    ASSERT_EQ(error.exit_code(), ExitCode::configuration) << error.what();
    GTEST_SKIP() << "skipped: " << error.what();  // no libnccl.so.2 here, or a build without CUDA
  }
  const VisibleDevices devices = find_devices();
  EXPECT_EQ(devices.count > 0, devices.reason.empty()) << devices.reason;
  test::world().barrier();
}

}  // namespace
}  // namespace vsr::comm
