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
  class Exchange final : public comm::PendingExchange {
   public:
    explicit Exchange(std::span<const comm::Transfer> transfers)
        : transfers_(transfers.begin(), transfers.end()) {}

   private:
    void do_finish(const comm::Arrived& arrived) override {
      for (std::size_t i = 0; i < transfers_.size(); ++i) {
        const std::span<const std::byte> own = transfers_[i].outgoing[0];
        std::ranges::copy(own, transfers_[i].incoming[0].begin());
        if (!own.empty()) arrived(i, 0, own.size());
      }
    }
    std::vector<comm::Transfer> transfers_;
  };
  std::unique_ptr<comm::PendingExchange> do_begin_exchange(
      std::span<const comm::Transfer> transfers, std::size_t) override {
    return std::make_unique<Exchange>(transfers);
  }
  void do_all_gather_bulk(std::span<std::byte>, std::span<const std::size_t>) override {}
  void do_broadcast_bulk(std::span<std::byte>, int) override {}
  void do_all_reduce_fp16(std::span<std::uint16_t>) override {}
  void do_all_reduce_bf16(std::span<std::uint16_t>) override {}
  void do_all_reduce_fp32(std::span<float>) override {}
};

}  // namespace vsr::test
