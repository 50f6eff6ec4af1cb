// SPDX-License-Identifier: Apache-2.0
// Our side of the checkpoint comparison: masters and two moments of each parameter, sharded over
// the ranks, saved durably in the background as a run does, and loaded again with every byte
// checked. `--disk` measures the disk instead: one stream of as many bytes, written and synced.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <span>
#include <thread>

#include "bench/bench_support.hpp"
#include "comm/error.hpp"
#include "comm/shard.hpp"
#include "optim/large_array.hpp"
#include "runtime/checkpoint/checkpoint_store.hpp"
#include "runtime/checkpoint/files.hpp"

namespace {

namespace fs = std::filesystem;
using vsr::bench::ms_since;
using vsr::bench::Options;
using Clock = std::chrono::steady_clock;

constexpr std::array kArrays = {"exp_avg", "exp_avg_sq", "master"};
constexpr std::size_t kDiskBlockBytes = std::size_t{8} << 20;
constexpr auto kPoll = std::chrono::microseconds(500);

// Numbers that no disk and no file system can make smaller.
float value_of(std::size_t array, std::int64_t element) {
  std::uint64_t word = (static_cast<std::uint64_t>(element) * 3 + array) * 0x9e3779b97f4a7c15ULL;
  word ^= word >> 29;
  return static_cast<float>(word >> 40) * 0x1p-24F;
}

std::vector<vsr::runtime::ParameterRecord> parameters_of(const Options& options) {
  std::vector<vsr::runtime::ParameterRecord> parameters;
  std::int64_t begin = 0;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    const std::int64_t numel = vsr::runtime::elements_of_shape(shape);
    parameters.push_back({name, std::move(shape), "fp16", begin, numel, 0, {}});
    begin += numel;
  };
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    add(std::to_string(layer) + ".weight", {options.outputs(layer), options.width});
    add(std::to_string(layer) + ".bias", {options.outputs(layer)});
  }
  return parameters;
}

vsr::runtime::Snapshot snapshot_of(const Options& options, int rank, int world) {
  vsr::runtime::Snapshot snapshot;
  snapshot.parameters = parameters_of(options);
  const std::int64_t total = vsr::runtime::total_elements(snapshot.parameters);
  const vsr::comm::Interval mine = vsr::comm::intersect(
      vsr::comm::shard_of(vsr::comm::padded_to_block(total), rank, world), {0, total});
  snapshot.shard.intervals = {mine};
  for (std::size_t array = 0; array < kArrays.size(); ++array) {
    auto& values = snapshot.shard.arrays[kArrays[array]];
    for (std::int64_t i = mine.begin; i < mine.end; ++i) values.push_back(value_of(array, i));
  }
  return snapshot;
}

// As ShardView::copy makes one of what an optimizer holds.
vsr::runtime::Snapshot copy_of(const vsr::runtime::Snapshot& snapshot) {
  vsr::runtime::Snapshot copy;
  copy.iteration = snapshot.iteration;
  copy.parameters = snapshot.parameters;
  copy.shard.intervals = snapshot.shard.intervals;
  for (const auto& [name, values] : snapshot.shard.arrays) {
    std::vector<float>& array = copy.shard.arrays[name];
    vsr::optim::reserve_large(array, values.size());
    array.insert(array.end(), values.begin(), values.end());
  }
  return copy;
}

struct Times {
  double save_ms = 0.0;   // from the first copy to the published checkpoint
  double stall_ms = 0.0;  // of it, what training waits for
  double copy_ms = 0.0;   // of the stall, the copy of the snapshot
};

Times save(vsr::comm::Communicator& world, vsr::runtime::CheckpointStore& store,
           const vsr::runtime::Snapshot& snapshot) {
  Times times;
  world.barrier();
  const auto start = Clock::now();
  vsr::runtime::Snapshot copy = copy_of(snapshot);
  times.copy_ms = ms_since(start);
  store.begin_save(std::move(copy));
  times.stall_ms = ms_since(start);
  while (store.in_flight()) {
    std::this_thread::sleep_for(kPoll);  // here a run trains
    const std::vector<int> busy = world.all_gather(store.is_busy() ? 1 : 0);
    if (std::ranges::find(busy, 1) != busy.end()) continue;
    const auto meeting = Clock::now();
    store.advance();
    times.stall_ms += ms_since(meeting);
  }
  times.save_ms = ms_since(start);
  return times;
}

double load(vsr::comm::Communicator& world, vsr::runtime::CheckpointStore& store,
            const vsr::runtime::Snapshot& expected) {
  world.barrier();
  const auto start = Clock::now();
  const auto loaded =
      store.load({}, [&](const vsr::runtime::Snapshot&) { return expected.shard.intervals; });
  const double ms = ms_since(start);
  if (!loaded || loaded->snapshot.iteration != expected.iteration ||
      loaded->snapshot.shard.arrays != expected.shard.arrays)
    throw vsr::CheckpointError("what was loaded is not what was saved");
  return ms;
}

using WriteBlock = std::function<void(std::span<const std::byte> block, std::int64_t offset_bytes)>;

// Everything first, then the sync: what `dd conv=fsync` does.
void write_then_sync(const fs::path& path, const std::function<void(const WriteBlock&)>& write) {
  const vsr::runtime::FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  write([&](std::span<const std::byte> block, std::int64_t offset_bytes) {
    if (::pwrite(file.get(), block.data(), block.size(), offset_bytes) !=
        static_cast<ssize_t>(block.size()))
      throw vsr::IoError("cannot write to '" + path.string() + "'");
  });
  if (::fsync(file.get()) != 0) throw vsr::IoError("cannot sync '" + path.string() + "'");
}

// As our checkpoints are written: on its way to the disk while more is written.
void write_early(const fs::path& path, const std::function<void(const WriteBlock&)>& write) {
  vsr::runtime::OutputFile file(path);
  write([&](std::span<const std::byte> block, std::int64_t offset_bytes) {
    file.write_at(block, offset_bytes);
  });
  file.sync_and_close();
}

// One stream, on rank 0.
double write_disk(vsr::comm::Communicator& world, const fs::path& folder, std::int64_t bytes,
                  bool is_early) {
  std::vector<std::uint64_t> words(kDiskBlockBytes / sizeof(std::uint64_t));
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i * 0x9e3779b97f4a7c15ULL;
  const auto block = std::as_bytes(std::span<const std::uint64_t>(words));
  const fs::path path = folder / "stream";
  world.barrier();
  const auto start = Clock::now();
  const auto write_all = [&](const WriteBlock& write) {
    for (std::int64_t at = 0; at < bytes;) {
      const std::int64_t size = std::min<std::int64_t>(bytes - at, kDiskBlockBytes);
      write(block.first(static_cast<std::size_t>(size)), at);
      at += size;
    }
  };
  if (world.rank() == 0) (is_early ? write_early : write_then_sync)(path, write_all);
  world.barrier();
  const double ms = ms_since(start);
  if (world.rank() == 0) fs::remove(path);
  return ms;
}

std::vector<double> slowest(vsr::comm::Communicator& world, const std::vector<double>& mine) {
  return vsr::bench::slowest_row(world, mine);
}

nlohmann::json measure(vsr::comm::Communicator& world, const Options& options) {
  if (options.folder.empty()) throw vsr::UsageError("--folder is missing: where to write");
  const fs::path folder = options.folder;
  world.agree_all_ok("making the folder", [&] {
    if (world.rank() != 0) return;
    // What an older run left would be loaded in place of ours.
    if (fs::exists(folder) && !fs::is_empty(folder))
      throw vsr::UsageError("--folder: '" + folder.string() + "' is not empty");
    vsr::runtime::create_folders(folder);
  });
  const std::int64_t bytes = 12 * options.parameters();
  nlohmann::json record = {{"name", options.disk.empty() ? "ours" : "disk"},
                           {"checked", true},
                           {"parameters", options.parameters()},
                           {"bytes", bytes},
                           {"times_ms", nlohmann::json::array()}};
  const int rounds = options.warmup + options.iterations;
  if (!options.disk.empty()) {
    for (int i = 0; i < rounds; ++i) {
      const double ms =
          slowest(world, {write_disk(world, folder, bytes, options.disk == "early")})[0];
      if (i >= options.warmup) record["times_ms"].push_back(ms);
    }
    return record;
  }
  vsr::runtime::CheckpointStore store(folder, world);
  vsr::runtime::Snapshot snapshot = snapshot_of(options, world.rank(), world.world());
  for (int i = 0; i < rounds; ++i) {
    snapshot.iteration = i + 1;
    const Times times = save(world, store, snapshot);
    const std::vector<double> row = slowest(world, {times.save_ms, times.stall_ms, times.copy_ms});
    const double load_ms = slowest(world, {load(world, store, snapshot)})[0];
    store.prune({.last = 1});
    if (i < options.warmup) continue;
    record["times_ms"].push_back(row[0]);
    record["stall_ms"].push_back(row[1]);
    record["copy_ms"].push_back(row[2]);
    record["load_ms"].push_back(load_ms);
  }
  world.agree_all_ok("removing what was written", [&] {
    if (world.rank() == 0) vsr::runtime::remove_tree(store.folder());
  });
  return record;
}

}  // namespace

int main(int argc, char** argv) {
  return vsr::bench::run(argc, argv, measure);
}
