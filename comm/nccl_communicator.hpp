// SPDX-License-Identifier: Apache-2.0
// The backend for a GPU per rank: bulk calls go through NCCL, on memory of the GPU and on a stream
// of their own; control traffic stays on MPI and in host memory.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/device/nccl_functions.hpp"
#include "comm/mpi_communicator.hpp"

namespace vsr::comm {

/// What the tests vary; the defaults are what programs use.
struct NcclOptions {
  /// How long ranks may need to find each other, and a single collective may take, before this rank
  /// gives up. A run's watchdog is stricter.
  std::chrono::milliseconds time_limit = std::chrono::minutes(5);
  /// How long the end of a broken communicator may take before it is left behind.
  std::chrono::milliseconds abort_limit = std::chrono::seconds(2);
  /// Largest single message.
  std::size_t chunk_bytes = std::size_t{1} << 30;
};

/// Orders each call after what is on the device's work stream and before what is put there later;
/// waits for its end on the host without ever blocking: an error of NCCL, or the time limit, ends
/// the communicator and throws. Sums of all-reduce and reduce-scatter are NCCL's own: the same bits
/// for the same number of ranks on the same machine.
class NcclCommunicator final : public MpiCommunicator {
 public:
  /// Collective. `device` is this rank's own.
  /// @throws ConfigurationError on all ranks when two ranks have the same GPU, with who has which
  /// @throws AgreedError (exit 75) on all ranks, naming those that NCCL did not bring together
  NcclCommunicator(std::unique_ptr<Device> device, const NcclFunctions& nccl,
                   const NcclOptions& options = {});
  /// Local: a communicator that was not closed is aborted.
  ~NcclCommunicator() override;

  std::string_view backend() const noexcept override { return "nccl"; }
  Device* bulk_device() const noexcept override { return device_.get(); }
  bool reduces_on_the_way() const noexcept override { return true; }
  void close() override;

 private:
  class Exchange;

  std::unique_ptr<PendingExchange> do_begin_exchange(std::span<const Transfer> transfers,
                                                     std::size_t piece_bytes) override;
  void do_all_gather_bulk(std::span<std::byte> all,
                          std::span<const std::size_t> sizes_bytes) override;
  void do_broadcast_bulk(std::span<std::byte> data, int root) override;
  void do_all_reduce_fp16(std::span<std::uint16_t> values) override;
  void do_all_reduce_bf16(std::span<std::uint16_t> values) override;
  void do_all_reduce_fp32(std::span<float> values) override;
  void do_reduce_scatter(SumType type, std::span<const std::byte> values, std::span<std::byte> mine,
                         std::span<const std::size_t> sizes_bytes) override;

  void refuse_shared_devices();
  void meet(const NcclUniqueId& id);
  struct Meeting {
    bool is_late;         // it only waited for others
    std::string trouble;  // why this rank did not get there; empty when it did
  };
  Meeting meet_alone(const NcclUniqueId& id);
  void all_reduce(std::span<std::byte> values, NcclType type, std::size_t element_bytes);
  void in_group(const char* what, const std::function<void()>& calls);
  void check(const char* what, NcclResult result);
  void run(const char* what, const std::function<void()>& calls);
  void require_alive() const;
  void start_after_work();
  void wait_for(const char* what, DeviceEvent event);
  std::string trouble(NcclResult result) const;
  [[noreturn]] void give_up(const char* what, const std::string& why);
  bool abort_in_time() noexcept;

  std::unique_ptr<Device> device_;
  const NcclFunctions& nccl_;
  NcclOptions options_;
  std::unique_ptr<OwnedStream> stream_;
  std::unique_ptr<OwnedEvent> work_is_there_;
  std::unique_ptr<OwnedEvent> is_done_;
  NcclComm comm_ = nullptr;
  bool is_in_group_ = false;
  bool is_closed_ = false;
};

}  // namespace vsr::comm
