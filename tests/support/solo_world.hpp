// SPDX-License-Identifier: Apache-2.0
// A world of one rank without MPI: what a run on many ranks must equal, inside each of them.
#pragma once

#include <algorithm>

#include "comm/communicator.hpp"

namespace vsr::test {

class SoloWorld final : public comm::Communicator {
 public:
  SoloWorld() {
    host_ = "solo";
    node_ranks_ = {0};
  }
  std::string_view backend() const noexcept override { return "solo"; }
  void barrier() override {}
  void broadcast_bytes(std::span<std::byte>, int) override {}
  void all_gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all,
                        std::span<const std::size_t>) override {
    if (mine.data() != all.data()) std::ranges::copy(mine, all.begin());
  }
  void exchange_bytes(std::span<const std::span<const std::byte>> outgoing,
                      std::span<const std::span<std::byte>> incoming) override {
    std::ranges::copy(outgoing[0], incoming[0].begin());
  }
  void all_reduce_sum_fp16(std::span<std::uint16_t>) override {}
  void all_reduce_sum_bf16(std::span<std::uint16_t>) override {}
  void all_reduce_sum_fp32(std::span<float>) override {}
};

}  // namespace vsr::test
