// SPDX-License-Identifier: Apache-2.0
// What a failed call of the CUDA runtime turns into; on machines with and without a GPU.
#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <string>
#include <vector>

#include "comm/device/device.hpp"
#include "comm/error.hpp"
#include "optim/cuda/device_memory.hpp"
#include "tests/support/error_messages.hpp"

namespace vsr::optim {
namespace {

using vsr::test::expect_in;
using vsr::test::message_of;

// Codes of the CUDA runtime, whose numbers are part of its interface.
constexpr int kInvalidValue = 1;
constexpr int kMemoryAllocation = 2;
constexpr int kNoDevice = 100;
constexpr int kNoKernelImage = 209;

std::string message_for(int code) {
  return message_of<CudaError>([&] { check_cuda(code, "cudaThing of 12 bytes"); });
}

TEST(CudaErrors, NameTheCallTheTextAndTheCode) {
  const std::string message = message_for(kInvalidValue);
  expect_in("cudaThing of 12 bytes failed", message);
  expect_in(": invalid argument (cudaErrorInvalidValue)", message);
  EXPECT_NO_THROW(check_cuda(0, "cudaThing"));
}

TEST(CudaErrors, SayWhatToDoWhereThatIsKnown) {
  expect_in("smaller batch", message_for(kMemoryAllocation));
  expect_in("driver for CUDA 13", message_for(kNoDevice));
  expect_in("CMAKE_CUDA_ARCHITECTURES", message_for(kNoKernelImage));
}

TEST(CudaErrors, AreCommunicationFailuresWithAPlace) {
  try {
    check_cuda(kInvalidValue, "cudaThing");
    FAIL() << "threw nothing";
  } catch (const CudaError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::communication);
    EXPECT_EQ(error.where().rfind("cuda_error_test.cpp:", 0), 0U) << error.where();
  }
}

TEST(CudaErrors, TheMacroNamesItsCall) {
  expect_in("(kInvalidValue) failed", message_of<CudaError>([] { VSR_CUDA((kInvalidValue)); }));
}

TEST(DeviceMemory, SizesThatDoNotFitAreRefusedWithoutADevice) {
  constexpr std::size_t kLargest = std::numeric_limits<std::size_t>::max();
  expect_in("more bytes than 64 bits count",
            message_of<ArgumentError>([] { DeviceArray<double> array(kLargest / 4); }));
  EXPECT_TRUE(DeviceArray<double>(0).span().empty());
  EXPECT_TRUE(DeviceArray<double>().span().empty());
}

// Without a GPU the runtime says so; with one there is no such room.
TEST(DeviceMemory, WhatCannotBeHadIsACudaErrorThatNamesTheSize) {
  expect_in("cudaMalloc of 1152921504606846976 bytes failed",
            message_of<CudaError>([] { DeviceArray<std::byte> array(std::size_t{1} << 60); }));
}

TEST(CudaDevices, ACountOrAReason) {
  const comm::VisibleDevices devices = comm::find_devices();
  EXPECT_GE(devices.count, 0);
  EXPECT_EQ(devices.count == 0, !devices.reason.empty());
}

TEST(DeviceKernels, WrongArgumentsAreRefusedWithoutADevice) {
  std::vector<float> values(8), few(4);
  EXPECT_THROW(enqueue_ema(values, few, 0.9, nullptr), ArgumentError);
  EXPECT_THROW(enqueue_upload(std::as_bytes(std::span(values)),
                              std::as_writable_bytes(std::span(few)), nullptr),
               ArgumentError);
  EXPECT_NO_THROW(enqueue_ema({}, {}, 0.9, nullptr));
}

}  // namespace
}  // namespace vsr::optim
