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

 private:
  void do_barrier() override {}
  void do_broadcast(std::span<std::byte>, int) override {}
  void do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                     std::span<const std::size_t>) override {
    if (mine.data() != all.data()) std::ranges::copy(mine, all.begin());
  }
  void do_exchange(std::span<const std::span<const std::byte>> outgoing,
                   std::span<const std::span<std::byte>> incoming) override {
    std::ranges::copy(outgoing[0], incoming[0].begin());
  }
  void do_all_reduce_fp16(std::span<std::uint16_t>) override {}
  void do_all_reduce_bf16(std::span<std::uint16_t>) override {}
  void do_all_reduce_fp32(std::span<float>) override {}
};

}  // namespace vsr::test
