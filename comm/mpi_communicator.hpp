// SPDX-License-Identifier: Apache-2.0
// The collectives over MPI: the backend of every machine without a GPU, and of the control traffic
// of those with one.
#pragma once

#include "comm/communicator.hpp"

namespace vsr::comm {

/// What the tests vary; the defaults are what programs use.
struct MpiOptions {
  /// Largest single message; MPI counts are ints, and some transports fail near 2 GiB.
  std::size_t chunk_bytes = std::size_t{1} << 30;
  /// Cut a node into groups of this many ranks that count as nodes of their own; 0: do not.
  int ranks_per_node = 0;
};

/// Communicator on a duplicate of MPI_COMM_WORLD that returns errors instead of ending the job.
class MpiCommunicator : public Communicator {
 public:
  /// Collective. @throws ArgumentError when MPI is not running or an option makes no sense
  explicit MpiCommunicator(const MpiOptions& options = {});
  ~MpiCommunicator() override;

  std::string_view backend() const noexcept override { return "mpi"; }

 protected:
  void do_barrier() override;
  void do_broadcast(std::span<std::byte> data, int root) override;
  void do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                     std::span<const std::size_t> sizes_bytes) override;
  std::unique_ptr<PendingExchange> do_begin_exchange(std::span<const Transfer> transfers,
                                                     std::size_t piece_bytes) override;
  void do_all_gather_bulk(std::span<std::byte> all,
                          std::span<const std::size_t> sizes_bytes) override;
  void do_broadcast_bulk(std::span<std::byte> data, int root) override;
  void do_all_reduce_fp16(std::span<std::uint16_t> values) override;
  void do_all_reduce_bf16(std::span<std::uint16_t> values) override;
  void do_all_reduce_fp32(std::span<float> values) override;

 private:
  struct Handles;
  class Exchange;
  void find_node_ranks(int ranks_per_node);
  void count_all_reduce(std::size_t bytes) noexcept;

  std::size_t chunk_bytes_;
  std::unique_ptr<Handles> handles_;
};

}  // namespace vsr::comm
