// SPDX-License-Identifier: Apache-2.0
// A run in small, with a start, steps with two leaves, clipping, a save, a validation's gather and
// a load, in which MPI fails on one rank at its N-th call: each phase has calls, so each fails for
// some N. Usage: failing_call N FOLDER; N 0: none fails, and the number of calls is printed.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "comm/error.hpp"
#include "comm/mpi_communicator.hpp"
#include "comm/mpi_environment.hpp"
#include "launch/program.hpp"
#include "optim/fp16_optimizer.hpp"
#include "runtime/checkpoint/checkpoint_store.hpp"
#include "runtime/train/run_state.hpp"

namespace {

using vsr::comm::MpiCommunicator;

/// Counts the calls of this rank and fails in one of them.
class FailingCommunicator final : public MpiCommunicator {
 public:
  explicit FailingCommunicator(int failing) : failing_(failing) {}
  int calls() const noexcept { return calls_; }

 private:
  void count(const char* call) {
    if (++calls_ == failing_ && rank_ == world_ - 1)
      throw vsr::CommError("rank " + std::to_string(rank_) + "/" + std::to_string(world_) + " on " +
                           host_ + ": " + call + " failed: injected");
  }
  void do_barrier() override {
    count("MPI_Barrier");
    MpiCommunicator::do_barrier();
  }
  void do_broadcast(std::span<std::byte> data, int root) override {
    count("MPI_Bcast");
    MpiCommunicator::do_broadcast(data, root);
  }
  void do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                     std::span<const std::size_t> sizes_bytes) override {
    count("MPI_Allgatherv");
    MpiCommunicator::do_all_gather(mine, all, sizes_bytes);
  }
  std::unique_ptr<vsr::comm::PendingExchange> do_begin_exchange(
      std::span<const vsr::comm::Transfer> transfers, std::size_t piece_bytes) override {
    count("MPI_Isend");
    return MpiCommunicator::do_begin_exchange(transfers, piece_bytes);
  }

  int failing_;
  int calls_ = 0;
};

void run(FailingCommunicator& world, const std::string& folder) {
  torch::manual_seed(1);
  const torch::Tensor weight = torch::randn({40, 50}).to(torch::kHalf).set_requires_grad(true);
  vsr::optim::Fp16OptimizerOptions options;
  options.leaves = 2 * world.world();
  options.parameters = {{"weight", weight, {}}};
  options.replica_check_steps = 1;
  vsr::optim::Fp16Optimizer optimizer(
      std::make_unique<torch::optim::Adam>(std::vector<torch::Tensor>{weight}, 1e-3), world,
      options);
  vsr::runtime::CheckpointStore store(folder, world);
  vsr::runtime::Progress progress;
  for (progress.iteration = 1; progress.iteration <= 2; ++progress.iteration) {
    optimizer.zero_grad();
    for ([[maybe_unused]] const int leaf : optimizer.my_leaves())
      optimizer.backward(weight.to(torch::kFloat).square().mean());
    optimizer.clip_fp32_grads(1.0);
    optimizer.step();
    store.save(vsr::runtime::take_snapshot(optimizer, {}, progress, {{"run", "small"}}));
    store.prune({.last = 1});
  }
  const std::vector<double> scores = world.all_gather(static_cast<double>(world.rank()));
  VSR_CHECK(scores.back() == world.world() - 1, "a validation went wrong");
  const auto loaded =
      store.load({}, [&](const vsr::runtime::Snapshot&) { return optimizer.shard().intervals(); });
  vsr::runtime::restore_snapshot(loaded->snapshot, optimizer, {});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  return vsr::launch::run_program("failing_call", [&] {
    const vsr::comm::MpiEnvironment mpi(argc, argv);
    FailingCommunicator world(std::atoi(argv[1]));
    return vsr::launch::run_rank("failing_call", world.rank(), [&] {
      run(world, argv[2]);
      if (world.rank() == world.world() - 1) std::printf("%d calls\n", world.calls());
      return 0;
    });
  });
}
