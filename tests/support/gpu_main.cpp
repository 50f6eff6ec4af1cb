// SPDX-License-Identifier: Apache-2.0
// main() of the tests that need a GPU: where there is none they say why and exit with 77, which
// CTest shows as skipped, not as passed.
#include <gtest/gtest.h>

#include <cstdio>

#include "comm/device/device.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const vsr::comm::VisibleDevices devices = vsr::comm::find_devices();
  if (devices.count == 0) {
    std::printf("skipped: this test needs a GPU, and the CUDA runtime says: %s\n",
                devices.reason.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
