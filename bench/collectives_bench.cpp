// SPDX-License-Identifier: Apache-2.0
// Our side of the collectives comparison, and that of Open MPI itself: the three reductions, the
// all-gather that publishes shards, and broadcast, over sizes. Every result is compared with a
// closed form before it is timed.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>

#include "bench/bench_support.hpp"
#include "comm/error.hpp"
#include "comm/half_sum.hpp"
#include "comm/leaf_exchange.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_handles.hpp"
#include "comm/peer_buffer.hpp"
#include "optim/reduction.hpp"

namespace {

using vsr::bench::Options;
using vsr::comm::Communicator;
using vsr::comm::kBlockElements;

// Element `i` of what rank `rank` gives: whole numbers, so that no type rounds a sum of them.
int given(int rank, std::int64_t i) {
  return static_cast<int>((i * 7 + rank * 13) % 31) - 15;
}

int total(int ranks, std::int64_t i) {
  int sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += given(rank, i);
  return sum;
}

// One operation on one size: `prepare` outside the time, `run` in it, `check` once, before.
struct Case {
  std::string name;       // as in the report
  std::string operation;  // decides the factor of the bus bandwidth
  std::string type;
  std::function<void()> prepare;
  std::function<void()> run;
  std::function<bool()> is_right;
};

nlohmann::json timed(Communicator& world, const Options& options, std::int64_t bytes,
                     const Case& one) {
  one.prepare();
  one.run();
  world.agree_all_ok("checking a result", [&] {
    if (!one.is_right()) throw vsr::ArgumentError(one.name + " gave a wrong result");
  });
  std::vector<double> times_ms;
  for (int i = 0; i < options.warmup + options.iterations; ++i) {
    one.prepare();
    world.barrier();
    const auto start = std::chrono::steady_clock::now();
    one.run();
    const double mine = vsr::bench::ms_since(start);
    const double slowest = vsr::bench::slowest_row(world, std::span<const double>(&mine, 1))[0];
    if (i >= options.warmup) times_ms.push_back(slowest);
  }
  return {{"name", one.name},
          {"operation", one.operation},
          {"type", one.type},
          {"bytes", bytes},
          {"times_ms", times_ms}};
}

// Gradients of one FP16 parameter that fills `bytes`, reduced to their owners.
class Reduction {
 public:
  Reduction(Communicator& world, std::int64_t bytes, vsr::optim::Reduction reduction)
      : world_(world),
        layout_({{.name = "weight", .shape = {bytes / 2}}}),
        gradients_(world, layout_.total_bytes()),
        reducer_(world, gradients_, layout_, reduction, world.world()) {}

  void fill() {
    auto* const values = reinterpret_cast<std::uint16_t*>(gradients_.mine().data());
    for (std::int64_t i = 0; i < layout_.logical_elements(); ++i)
      values[i] = vsr::comm::float_to_fp16(static_cast<float>(given(world_.rank(), i)));
  }

  void run() {
    reducer_.start();
    reducer_.reduce_last(vsr::optim::Norm::two, 2.0);
    reducer_.release();
  }

  // Sums of squares of whole numbers are exact in FP64.
  bool is_right() const {
    const auto shard =
        vsr::comm::shard_of(layout_.segments()[0].elements, world_.rank(), world_.world());
    const std::span<const double> norms = reducer_.block_norms();
    for (std::size_t block = 0; block < norms.size(); ++block) {
      double expected = 0.0;
      const std::int64_t begin = shard.begin + static_cast<std::int64_t>(block) * kBlockElements;
      for (std::int64_t i = begin; i < begin + kBlockElements; ++i) {
        const double sum = total(world_.world(), i);
        expected += sum * sum;
      }
      if (norms[block] != expected) return false;
    }
    return true;
  }

 private:
  Communicator& world_;
  vsr::optim::FlatLayout layout_;
  vsr::comm::PeerBuffer gradients_;
  vsr::optim::GradientReducer reducer_;
};

Case reduction_case(Communicator& world, std::int64_t bytes, vsr::optim::Reduction reduction) {
  const auto state = std::make_shared<Reduction>(world, bytes, reduction);
  const bool reduces_all = reduction == vsr::optim::Reduction::allreduce;
  state->fill();
  return {std::string(vsr::optim::reduction_name(reduction)),
          reduces_all ? "all_reduce" : "reduce_scatter", "fp16",
          // An all-reduce writes over what it is given.
          [state, reduces_all] {
            if (reduces_all) state->fill();
          },
          [state] { state->run(); }, [state] { return state->is_right(); }};
}

std::byte byte_of(int rank, std::size_t i) {
  return static_cast<std::byte>((rank * 37 + static_cast<int>(i % 4093)) & 0xff);
}

// The shard of each rank, in all replicas.
class Publication {
 public:
  Publication(Communicator& world, std::int64_t bytes)
      : world_(world),
        segment_{0, bytes / 2, 2},
        replica_(world, static_cast<std::size_t>(bytes)),
        publisher_(world, replica_, {segment_}),
        shard_(publisher_.destinations(0)[0].size()) {
    for (std::size_t i = 0; i < shard_.size(); ++i) shard_[i] = byte_of(world.rank(), i);
  }

  void run() {
    for (const std::span<std::byte> place : publisher_.destinations(0))
      if (!place.empty()) std::memcpy(place.data(), shard_.data(), shard_.size());
    publisher_.publish();
  }

  bool is_right() const {
    std::size_t at = 0;
    for (int owner = 0; owner < world_.world(); ++owner) {
      const auto shard = vsr::comm::shard_of(segment_.elements, owner, world_.world());
      for (std::size_t i = 0; i < static_cast<std::size_t>(shard.size()) * 2; ++i)
        if (replica_.mine()[at++] != byte_of(owner, i)) return false;
    }
    return true;
  }

 private:
  Communicator& world_;
  vsr::comm::SegmentPlace segment_;
  vsr::comm::PeerBuffer replica_;
  vsr::comm::ShardPublisher publisher_;
  std::vector<std::byte> shard_;
};

Case publish_case(Communicator& world, std::int64_t bytes) {
  const auto state = std::make_shared<Publication>(world, bytes);
  return {"publish",
          "all_gather",
          "fp16",
          [] {},
          [state] { state->run(); },
          [state] { return state->is_right(); }};
}

// Rank 0's bytes on all ranks, by `broadcast`.
Case broadcast_case(const Communicator& world, std::int64_t bytes, const char* type,
                    const std::function<void(std::span<std::byte>)>& broadcast) {
  const auto data = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < data->size(); ++i) (*data)[i] = byte_of(world.rank(), i);
  return {"broadcast",
          "broadcast",
          type,
          [] {},
          [data, broadcast] { broadcast(*data); },
          [data] {
            for (std::size_t i = 0; i < data->size(); ++i)
              if ((*data)[i] != byte_of(0, i)) return false;
            return true;
          }};
}

std::vector<Case> our_cases(Communicator& world, std::int64_t bytes) {
  using vsr::optim::Reduction;
  std::vector<Case> cases;
  for (const Reduction one : {Reduction::exact, Reduction::fast, Reduction::allreduce})
    cases.push_back(reduction_case(world, bytes, one));
  cases.push_back(publish_case(world, bytes));
  cases.push_back(broadcast_case(
      world, bytes, "fp16", [&](std::span<std::byte> data) { world.broadcast_bytes(data, 0); }));
  return cases;
}

// FP32 values in and out of an MPI call.
struct Floats {
  std::vector<float> in, out;
};

Case mpi_case(const std::string& name, const std::string& operation, std::size_t in,
              std::size_t out, const std::function<void(Floats&)>& call, int rank,
              const std::function<float(std::int64_t)>& expected) {
  const auto values = std::make_shared<Floats>();
  values->in.resize(in);
  values->out.resize(out);
  for (std::size_t i = 0; i < in; ++i)
    values->in[i] = static_cast<float>(given(rank, static_cast<std::int64_t>(i)));
  return {name,
          operation,
          "fp32",
          [] {},
          [values, call] { call(*values); },
          [values, expected] {
            for (std::size_t i = 0; i < values->out.size(); ++i)
              if (values->out[i] != expected(static_cast<std::int64_t>(i))) return false;
            return true;
          }};
}

std::vector<Case> mpi_cases(const Communicator& world, std::int64_t bytes) {
  const int ranks = world.world();
  const int rank = world.rank();
  const auto all = static_cast<std::size_t>(bytes) / sizeof(float);
  const std::size_t part = all / static_cast<std::size_t>(ranks);
  const auto count = static_cast<int>(all);
  const auto part_count = static_cast<int>(part);
  const auto at = [part](std::int64_t owner, std::int64_t i) {
    return owner * static_cast<std::int64_t>(part) + i;
  };
  return {
      mpi_case(
          "MPI_Allreduce", "all_reduce", all, all,
          [count](Floats& v) {
            VSR_MPI(MPI_Allreduce(v.in.data(), v.out.data(), count, MPI_FLOAT, MPI_SUM,
                                  MPI_COMM_WORLD));
          },
          rank, [ranks](std::int64_t i) { return static_cast<float>(total(ranks, i)); }),
      mpi_case(
          "MPI_Reduce_scatter_block", "reduce_scatter", all, part,
          [part_count](Floats& v) {
            VSR_MPI(MPI_Reduce_scatter_block(v.in.data(), v.out.data(), part_count, MPI_FLOAT,
                                             MPI_SUM, MPI_COMM_WORLD));
          },
          rank,
          [ranks, rank, at](std::int64_t i) {
            return static_cast<float>(total(ranks, at(rank, i)));
          }),
      mpi_case(
          "MPI_Allgather", "all_gather", part, part * static_cast<std::size_t>(ranks),
          [part_count](Floats& v) {
            VSR_MPI(MPI_Allgather(v.in.data(), part_count, MPI_FLOAT, v.out.data(), part_count,
                                  MPI_FLOAT, MPI_COMM_WORLD));
          },
          rank,
          [part](std::int64_t i) {
            const auto size = static_cast<std::int64_t>(part);
            return static_cast<float>(given(static_cast<int>(i / size), i % size));
          }),
      broadcast_case(world, bytes, "fp32", [](std::span<std::byte> data) {
        VSR_MPI(MPI_Bcast(data.data(), static_cast<int>(data.size()), MPI_BYTE, 0, MPI_COMM_WORLD));
      })};
}

nlohmann::json measure(Communicator& world, const Options& options) {
  nlohmann::json rows = nlohmann::json::array();
  std::vector<double> medians_ms;
  for (const std::int64_t bytes : options.bytes) {
    const std::int64_t unit = kBlockElements * 4;
    if (bytes < unit || bytes % unit != 0 || bytes > std::int64_t{1} << 30)
      throw vsr::UsageError("--bytes " + std::to_string(bytes) + ": expected a multiple of " +
                            std::to_string(unit) + " up to 1 GiB");
    for (const Case& one : options.mpi ? mpi_cases(world, bytes) : our_cases(world, bytes)) {
      rows.push_back(timed(world, options, bytes, one));
      auto times_ms = rows.back()["times_ms"].get<std::vector<double>>();
      std::nth_element(times_ms.begin(),
                       times_ms.begin() + static_cast<std::ptrdiff_t>(times_ms.size() / 2),
                       times_ms.end());
      medians_ms.push_back(times_ms[times_ms.size() / 2]);
    }
  }
  return {{"name", options.mpi ? "open_mpi" : "ours"},
          {"checked", true},
          {"times_ms", medians_ms},
          {"rows", rows}};
}

}  // namespace

int main(int argc, char** argv) {
  return vsr::bench::run(argc, argv, measure);
}
