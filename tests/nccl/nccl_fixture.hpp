// SPDX-License-Identifier: Apache-2.0
// An NCCL communicator over the fake, made anew for each case.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/bulk_memory.hpp"
#include "comm/nccl_communicator.hpp"
#include "tests/support/fake_nccl.hpp"
#include "tests/support/mpi_world.hpp"

namespace vsr::comm {

class NcclTest : public testing::Test {
 protected:
  NcclTest() : rank_(test::world().rank()), world_(test::world().world()) {
    auto device = std::make_unique<test::FakeDevice>("GPU-" + std::to_string(rank_));
    device_ = device.get();
    fake_ = std::make_unique<test::FakeNccl>(*device);
    waiting_ = std::move(device);
  }
  // The communicator goes before what it calls.
  ~NcclTest() override { comm_.reset(); }

  NcclCommunicator& start(const NcclOptions& options = {}) {
    comm_ = std::make_unique<NcclCommunicator>(std::move(waiting_), fake_->functions(), options);
    return *comm_;
  }

  template <typename T>
  std::span<T> values_in(const BulkMemory& memory) {
    return {reinterpret_cast<T*>(memory.bytes().data()), memory.bytes().size() / sizeof(T)};
  }

  int rank_;
  int world_;
  test::FakeDevice* device_ = nullptr;  // of comm_, once it is there
  std::unique_ptr<test::FakeNccl> fake_;
  std::unique_ptr<test::FakeDevice> waiting_;
  std::unique_ptr<NcclCommunicator> comm_;
};

}  // namespace vsr::comm
