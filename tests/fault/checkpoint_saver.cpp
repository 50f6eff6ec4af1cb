// SPDX-License-Identifier: Apache-2.0
// The program that the kill tests end at random: under mpirun it saves one checkpoint after the
// other; alone, `--check`, it says which one is the newest that loads with the right values.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/error.hpp"
#include "comm/mpi_environment.hpp"
#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "runtime/checkpoint/checkpoint_store.hpp"
#include "runtime/checkpoint/run_folder.hpp"
#include "tests/support/checkpoint_samples.hpp"

namespace {

constexpr std::int64_t kWide = 20000;  // 300 k elements: 3.6 MB a checkpoint

int check(const std::string& run_folder) {
  const auto stored = vsr::runtime::read_parameters(run_folder);
  for (std::size_t i = 0; i < stored.parameters.size(); ++i) {
    const auto& parameter = stored.parameters[i];
    const auto expected = vsr::test::sample_values(
        "master", stored.iteration, {{parameter.begin, parameter.begin + parameter.numel}});
    if (!vsr::test::same_bits(stored.masters[i], expected)) {
      std::printf("%s differs at iteration %lld\n", parameter.name.c_str(),
                  static_cast<long long>(stored.iteration));
      return 1;
    }
  }
  std::printf("%lld\n", static_cast<long long>(stored.iteration));
  return 0;
}

// As a run saves: ranks go on while files are written, and meet when none is busy.
void save_in_background(vsr::runtime::CheckpointStore& store, vsr::comm::Communicator& world,
                        vsr::runtime::Snapshot snapshot) {
  store.begin_save(std::move(snapshot));
  while (store.in_flight()) {
    const std::vector<int> busy = world.all_gather(store.is_busy() ? 1 : 0);
    if (std::ranges::find(busy, 1) == busy.end()) store.advance();
  }
}

void save_on(vsr::comm::Communicator& world, const std::string& run_folder, int saves) {
  const vsr::comm::Communicator& ranks = world;
  vsr::runtime::CheckpointStore store(run_folder, world);
  std::unique_ptr<vsr::runtime::RunLock> lock;
  world.agree_all_ok("locking the run", [&] {
    if (ranks.rank() != 0) return;
    lock = std::make_unique<vsr::runtime::RunLock>(run_folder);
    for (const auto& notice : vsr::runtime::remove_leftovers(*lock))
      std::printf("%s\n", notice.c_str());
  });
  const auto loaded = store.load({}, [&](const vsr::runtime::Snapshot& header) {
    return vsr::test::sample_intervals(header.parameters, ranks.rank(), ranks.world());
  });
  std::int64_t iteration = loaded ? loaded->snapshot.iteration : 0;
  if (loaded && !loaded->notices.empty())
    throw vsr::CheckpointError("a checkpoint was damaged: " + loaded->notices.front());
  if (ranks.rank() == 0) std::printf("from %lld\n", static_cast<long long>(iteration));
  std::fflush(stdout);
  for (int i = 0; i < saves; ++i) {
    ++iteration;
    vsr::runtime::Snapshot snapshot =
        vsr::test::sample_snapshot(iteration, ranks.rank(), ranks.world(), kWide);
    if (iteration % 2 == 0)
      store.save(std::move(snapshot));
    else
      save_in_background(store, world, std::move(snapshot));
    store.prune({.last = 2});
    if (ranks.rank() == 0) {
      std::printf("saved %lld\n", static_cast<long long>(iteration));
      std::ofstream(run_folder + "/saved.txt", std::ios::app) << std::to_string(iteration) + "\n";
    }
  }
}

}  // namespace

// checkpoint_saver RUN_FOLDER SAVES | checkpoint_saver --check RUN_FOLDER
int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string(argv[1]) == "--check") return check(argv[2]);
    if (argc != 3) return static_cast<int>(vsr::ExitCode::usage);
    const vsr::comm::MpiEnvironment mpi(argc, argv);
    const auto world = vsr::comm::make_communicator(vsr::comm::Backend::mpi);
    save_on(*world, argv[1], std::stoi(argv[2]));
    return 0;
  } catch (const vsr::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
