// SPDX-License-Identifier: Apache-2.0
// The collectives this project needs, as typed calls on spans. No other layer calls MPI or NCCL.
// Every function here is collective unless said otherwise: all ranks call it, in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/flight_recorder.hpp"
#include "comm/shard.hpp"

namespace vsr::comm {

/// Names of `--backend`.
enum class Backend { automatic, mpi, nccl };

class Communicator;
class Device;

/// Types that collectives add up; FP16 and BF16 round after each addition.
enum class SumType { fp16, bf16, fp32 };

/// What a rank sends to and receives from each rank in one exchange.
struct Transfer {
  std::vector<std::span<const std::byte>> outgoing;  ///< [r] goes to rank r
  std::vector<std::span<std::byte>> incoming;        ///< [r] comes from rank r
};

/// Called when bytes [begin, end) of transfer `transfer` are here from every rank.
using Arrived =
    std::function<void(std::size_t transfer, std::size_t begin_bytes, std::size_t end_bytes)>;

/// An exchange that was begun and not finished yet. Destroying it gives up what is still under way;
/// local.
class PendingExchange {
 public:
  virtual ~PendingExchange() = default;
  PendingExchange(const PendingExchange&) = delete;
  PendingExchange& operator=(const PendingExchange&) = delete;

 protected:
  PendingExchange() = default;
  virtual void do_finish(const Arrived& arrived) = 0;

 private:
  friend class Communicator;
  std::size_t bytes_ = 0;  // that this rank sends
};

/// A group of ranks that train one model. Not copyable; borrow by reference.
/// Errors of every call: CommError naming rank, host and the failed operation.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return rank_; }
  int world() const noexcept { return world_; }
  /// Host name of this rank.
  const std::string& host() const noexcept { return host_; }
  /// Ranks (of this communicator) that share a node with this one, ascending, itself included.
  std::span<const int> node_ranks() const noexcept { return node_ranks_; }
  /// "mpi" or "nccl".
  virtual std::string_view backend() const noexcept = 0;
  /// Whose memory the bulk calls below take; null: host memory. BulkMemory makes some.
  virtual Device* bulk_device() const noexcept { return nullptr; }

  void barrier();
  /// Leave `root`'s bytes in `data` of all ranks; the same size everywhere.
  void broadcast_bytes(std::span<std::byte> data, int root);
  /// Leave the bytes of all ranks, in rank order, in `all`. `sizes_bytes[r]` is the size that rank
  /// r gives, known on all ranks; `mine` may lie in its place in `all`.
  void all_gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all,
                        std::span<const std::size_t> sizes_bytes);

  // Bulk calls: gradients and replicas, in bulk memory.

  /// Send `outgoing[r]` to rank r and fill `incoming[r]` from rank r; sizes match pairwise; empty
  /// spans cost no message, and the own rank's pair is copied.
  void exchange_bytes(std::span<const std::span<const std::byte>> outgoing,
                      std::span<const std::span<std::byte>> incoming);
  /// Several such exchanges that are under way at once, in pieces of `piece_bytes`, so that their
  /// receiver works on one piece while the next ones come. `arrived` is called once for each piece,
  /// in the order of transfers and bytes, and for nothing where nothing comes in. An exception out
  /// of it is thrown on when all pieces are here: the other ranks notice nothing.
  /// @throws ArgumentError when spans are missing or piece_bytes is 0
  void exchange_pieces(std::span<const Transfer> transfers, std::size_t piece_bytes,
                       const Arrived& arrived);
  /// The same in two steps, several at once: begin posts everything and never waits for a rank,
  /// finish waits. All ranks begin and finish the same exchanges in the same order. Until then what
  /// goes out must not change, nor what comes in be looked at.
  /// @throws as exchange_pieces
  std::unique_ptr<PendingExchange> begin_exchange(std::span<const Transfer> transfers,
                                                  std::size_t piece_bytes);
  void finish_exchange(std::unique_ptr<PendingExchange> exchange, const Arrived& arrived);
  /// all_gather_bytes and broadcast_bytes of bulk memory; `mine` lies in its place in `all`.
  void all_gather_bulk(std::span<std::byte> all, std::span<const std::size_t> sizes_bytes);
  void broadcast_bulk(std::span<std::byte> data, int root);
  /// Sum over ranks in FP16 (IEEE binary16 in its bits), each addition rounded to nearest even; the
  /// order is the backend's: the same bits for the same number of ranks. inf is overflow, not an
  /// error.
  void all_reduce_sum_fp16(std::span<std::uint16_t> values);
  /// The same in BF16.
  void all_reduce_sum_bf16(std::span<std::uint16_t> values);
  /// The same in FP32.
  void all_reduce_sum_fp32(std::span<float> values);
  /// Whether the backend adds up on the way to the owners (NCCL), so that reduce_scatter_sum is
  /// there; else owners add what an exchange brings.
  virtual bool reduces_on_the_way() const noexcept { return false; }
  /// Leave the sum over ranks of part r of `values` in `mine` of rank r. Parts lie one after the
  /// other; `sizes_bytes[r]` is the size of part r, whole elements of `type`.
  /// @throws ArgumentError for sizes that do not fit, and where the backend does not add up
  void reduce_scatter_sum(SumType type, std::span<const std::byte> values,
                          std::span<std::byte> mine, std::span<const std::size_t> sizes_bytes);
  /// Collective. End the backend in order; afterwards only local calls may follow. Without it the
  /// end is abrupt, which is what a failure wants.
  virtual void close() {}

  /// Typed forms of the calls above, for trivially copyable values.
  template <typename T>
  void broadcast(std::span<T> values, int root) {
    static_assert(std::is_trivially_copyable_v<T>);
    broadcast_bytes(std::as_writable_bytes(values), root);
  }
  template <typename T>
  std::vector<T> all_gather(std::span<const T> mine, std::span<const std::size_t> counts) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<std::size_t> sizes;
    std::size_t total = 0;
    for (const std::size_t count : counts) {
      sizes.push_back(count * sizeof(T));
      total += count;
    }
    std::vector<T> all(total);
    all_gather_bytes(std::as_bytes(mine), std::as_writable_bytes(std::span<T>(all)), sizes);
    return all;
  }
  /// One value of each rank, in rank order.
  template <typename T>
  std::vector<T> all_gather(const T& mine) {
    const std::vector<std::size_t> counts(static_cast<std::size_t>(world_), 1);
    return all_gather(std::span<const T>(&mine, 1), counts);
  }

  /// Byte strings of any size, one of each rank, in rank order (two exchanges: sizes, then bytes).
  std::vector<std::string> all_gather_strings(std::string_view mine);
  /// `root`'s string on all ranks.
  std::string broadcast_string(std::string_view text, int root);

  /// Run `action` on this rank, then agree: when it threw on any rank, all ranks throw AgreedError
  /// with the code and message of the lowest failing rank. Use it around everything that can fail
  /// on one rank alone (files, data), so that no rank waits for ever in the next collective.
  /// @param what what was being done, for the message of a failure that is no vsr::Error
  /// An AgreedError out of `action` (already held by all ranks) passes through unchanged, and so
  /// does a CommError: MPI itself failed, so there is nothing left to agree with; `main` aborts.
  void agree_all_ok(std::string_view what, const std::function<void()>& action);

  /// Bytes this rank has sent to other ranks through this object so far. Payload, whatever the
  /// protocol below does with it, for P ranks: broadcast bytes·(P−1) on the root; all-gather own
  /// bytes·(P−1); exchange the sum of `outgoing` to others; all-reduce 2·bytes·(P−1)/P, as a ring
  /// sends; reduce-scatter the parts of others. Shared memory counts as if sent: LeafExchange the
  /// shards of the other owners, bytes·(P−1)/P per leaf; ShardPublisher own shard·(P−1). So a step
  /// of k leaves per rank counts (2k+2)·Ψ·(P−1)/P for Ψ FP16 parameters, plus the small records
  /// that are agreed on. Local.
  std::int64_t sent_bytes() const noexcept { return sent_bytes_; }
  /// Add payload that reached other ranks through shared memory. Local; for classes of `comm`.
  void count_sent(std::int64_t bytes) noexcept { sent_bytes_ += bytes; }

  /// Record every call above from now on. Local; all ranks at the same point, as the numbers of
  /// calls are compared.
  void record_to(std::unique_ptr<FlightRecorder> recorder) noexcept {
    recorder_ = std::move(recorder);
  }
  /// A sign of life of a rank that works for long without a call. Local, any thread.
  void alive() const noexcept {
    if (recorder_) recorder_->alive();
  }

  /// What the calls of a scope are for, in flight records: Purpose purpose(world, "agree"). `name`
  /// is a literal.
  class Purpose {
   public:
    Purpose(Communicator& world, std::string_view name) noexcept
        : world_(world), before_(std::exchange(world.purpose_, name)) {}
    ~Purpose() { world_.purpose_ = before_; }
    Purpose(const Purpose&) = delete;
    Purpose& operator=(const Purpose&) = delete;

   private:
    Communicator& world_;
    std::string_view before_;
  };

 protected:
  Communicator() = default;
  // The calls of a backend, with the meaning of those above.
  virtual void do_barrier() = 0;
  virtual void do_broadcast(std::span<std::byte> data, int root) = 0;
  virtual void do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                             std::span<const std::size_t> sizes_bytes) = 0;
  virtual std::unique_ptr<PendingExchange> do_begin_exchange(std::span<const Transfer> transfers,
                                                             std::size_t piece_bytes) = 0;
  virtual void do_all_gather_bulk(std::span<std::byte> all,
                                  std::span<const std::size_t> sizes_bytes) = 0;
  virtual void do_broadcast_bulk(std::span<std::byte> data, int root) = 0;
  virtual void do_all_reduce_fp16(std::span<std::uint16_t> values) = 0;
  virtual void do_all_reduce_bf16(std::span<std::uint16_t> values) = 0;
  virtual void do_all_reduce_fp32(std::span<float> values) = 0;
  virtual void do_reduce_scatter(SumType type, std::span<const std::byte> values,
                                 std::span<std::byte> mine,
                                 std::span<const std::size_t> sizes_bytes);

  int rank_ = 0;
  int world_ = 1;
  std::string host_;
  std::vector<int> node_ranks_;
  std::int64_t sent_bytes_ = 0;

 private:
  template <typename Call>
  void recorded(Operation operation, std::size_t bytes, const Call& call);

  std::unique_ptr<FlightRecorder> recorder_;
  std::string_view purpose_;
};

/// "automatic", "mpi" or "nccl".
std::string_view to_string(Backend backend) noexcept;

/// Collective over the caller's MPI world: the communicator for `backend` on a duplicate of it, so
/// that our traffic never meets the caller's. `automatic` is MPI until the optimizer's step runs in
/// the memory of a GPU.
/// @throws NotCompiled for Backend::nccl in a build without it; ConfigurationError where a rank has
///         no GPU of its own; ArgumentError before MPI is started
std::unique_ptr<Communicator> make_communicator(Backend backend);

}  // namespace vsr::comm
