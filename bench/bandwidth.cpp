// SPDX-License-Identifier: Apache-2.0
// The time that memory alone takes for one optimizer step: the same bytes per rank and parameter,
// in the same two sweeps with the same mix of reads and writes, with next to no arithmetic, in as
// many processes. It is the limit that the step is held against.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "bench/bench_support.hpp"
#include "comm/error.hpp"

// Compiled for each instruction set and chosen at start, as the kernels of optim are.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)  // the choice at start runs before a sanitizer is set up
#define VSR_BENCH_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define VSR_BENCH_CLONES
#endif

namespace {

using vsr::comm::kBlockElements;

// Memory in huge pages where the system gives them: a limit should not depend on page walks.
template <typename T>
class Array {
 public:
  Array(std::int64_t elements, T value) : elements_(elements) {
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    const std::size_t bytes =
        (static_cast<std::size_t>(elements) * sizeof(T) / kHugePage + 1) * kHugePage;
    data_.reset(static_cast<T*>(std::aligned_alloc(kHugePage, bytes)));
    if (!data_) throw std::bad_alloc();
    madvise(data_.get(), bytes, MADV_HUGEPAGE);
    std::fill_n(data_.get(), elements_, value);
  }
  std::span<T> block(std::int64_t first) {
    return {data_.get() + first, static_cast<std::size_t>(kBlockElements)};
  }

 private:
  struct Free {
    void operator()(T* pointer) const { std::free(pointer); }
  };
  std::int64_t elements_;
  std::unique_ptr<T[], Free> data_;
};

// What one rank touches in a step, `shard` elements of state.
struct Memory {
  Memory(std::int64_t shard_elements, int world, bool keeps_sum_in_memory)
      : shard(shard_elements),
        ranks(world),
        slices(shard * world, 1),
        sums(keeps_sum_in_memory ? shard : 0, 0.0F),
        master(shard, 1.0F),
        exp_avg(shard, 1.0F),
        exp_avg_sq(shard, 1.0F),
        own_replica(shard, 0),
        peer_replicas(shard * (world - 1), 0),
        uses_sums(keeps_sum_in_memory) {}
  std::int64_t shard;
  int ranks;
  Array<std::uint16_t> slices;  // my shard in the gradients of each rank
  Array<float> sums;            // only where re-reading the slices would cost more
  Array<float> master, exp_avg, exp_avg_sq;
  Array<std::uint16_t> own_replica, peer_replicas;
  bool uses_sums;
};

VSR_BENCH_CLONES void add_slice(std::span<const std::uint16_t> slice, std::span<float> sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(slice[i]);
}

VSR_BENCH_CLONES float total_of(std::span<const float> values) {
  float lanes[16] = {};
  for (std::size_t i = 0; i < values.size(); i += 16)
    for (std::size_t lane = 0; lane < 16; ++lane) lanes[lane] += values[i + lane];
  float total = 0.0F;
  for (const float lane : lanes) total += lane;
  return total;
}

VSR_BENCH_CLONES void update(std::span<const float> sum, std::span<float> master,
                             std::span<float> exp_avg, std::span<float> exp_avg_sq,
                             std::span<std::uint16_t> replica) {
  for (std::size_t i = 0; i < sum.size(); ++i) {
    exp_avg[i] = 0.5F * exp_avg[i] + sum[i];
    exp_avg_sq[i] = 0.5F * exp_avg_sq[i] + sum[i];
    master[i] = 0.5F * master[i] + exp_avg[i] + exp_avg_sq[i];
    replica[i] = static_cast<std::uint16_t>(static_cast<std::int32_t>(sum[i]));
  }
}

// A line of a peer's replica is fetched before it is written: a read and a write.
VSR_BENCH_CLONES void publish(std::span<const std::uint16_t> own, std::span<std::uint16_t> peer) {
  for (std::size_t i = 0; i < own.size(); ++i)
    peer[i] = static_cast<std::uint16_t>(own[i] + (peer[i] & 1U));
}

void sum_block(Memory& memory, std::int64_t at, std::span<float> sum) {
  std::fill(sum.begin(), sum.end(), 0.0F);
  for (int source = 0; source < memory.ranks; ++source)
    add_slice(memory.slices.block(memory.shard * source + at), sum);
}

// The bytes of an optimizer step. Returns the sum over all slices, to be checked.
double two_sweeps(Memory& memory) {
  std::vector<float> local(static_cast<std::size_t>(kBlockElements));
  double total = 0.0;
  for (std::int64_t at = 0; at < memory.shard; at += kBlockElements) {
    const std::span<float> sum = memory.uses_sums ? memory.sums.block(at) : std::span<float>(local);
    sum_block(memory, at, sum);
    total += static_cast<double>(total_of(sum));
  }
  for (std::int64_t at = 0; at < memory.shard; at += kBlockElements) {
    const std::span<float> sum = memory.uses_sums ? memory.sums.block(at) : std::span<float>(local);
    if (!memory.uses_sums) sum_block(memory, at, sum);
    const auto replica = memory.own_replica.block(at);
    update(sum, memory.master.block(at), memory.exp_avg.block(at), memory.exp_avg_sq.block(at),
           replica);
    for (int peer = 0; peer + 1 < memory.ranks; ++peer)
      publish(replica, memory.peer_replicas.block(memory.shard * peer + at));
  }
  return total;
}

// Bytes of a step with one FP16 leaf per rank: slices once; master and moments read and written,
// the own replica written; the peers' replicas; and the sum again, from the slices or from memory,
// whichever is less.
double bytes_per_parameter(int world) {
  const double ranks = world;
  return 2.0 + 26.0 / ranks + 4.0 * (ranks - 1.0) / ranks + std::min(2.0, 8.0 / ranks);
}

nlohmann::json measure(vsr::comm::Communicator& world, const vsr::bench::Options& options) {
  const int ranks = world.world();
  const std::int64_t blocks = options.parameters() / kBlockElements / ranks;
  if (blocks < 1) throw vsr::UsageError("fewer parameters than one block of 1024 for each rank");
  Memory memory(blocks * kBlockElements, ranks, 8.0 / ranks < 2.0);

  const double expected = static_cast<double>(memory.shard) * ranks;  // every slice holds ones
  const double found = two_sweeps(memory);
  if (found != expected)
    throw vsr::ArgumentError("sum of all slices: got " + std::to_string(found) + ", expected " +
                             std::to_string(expected));
  std::vector<double> times_ms;
  for (int i = 0; i < options.warmup + options.iterations; ++i) {
    world.barrier();
    const auto start = std::chrono::steady_clock::now();
    two_sweeps(memory);
    const double mine = vsr::bench::ms_since(start);
    const double slowest = vsr::bench::slowest_row(world, std::span<const double>(&mine, 1))[0];
    if (i >= options.warmup) times_ms.push_back(slowest);
  }
  return {{"name", "bandwidth"},
          {"checked", true},
          {"parameters", options.parameters()},
          {"times_ms", times_ms},
          {"bytes_per_parameter", bytes_per_parameter(ranks)},
          {"measured_parameters", memory.shard * ranks}};
}

}  // namespace

int main(int argc, char** argv) {
  return vsr::bench::run(argc, argv, measure);
}
