// SPDX-License-Identifier: Apache-2.0
// Our side of the step comparison: the time from "the FP16 gradients are there" to "every rank has
// the new FP16 replica", clip and Adam on, of the optimizer that training runs, and how it divides
// into the words of the flow.
#include <torch/torch.h>
#include <torch/version.h>

#include <chrono>
#include <map>

#include "bench/bench_support.hpp"
#include "bench/step_check.hpp"
#include "comm/error.hpp"

namespace {

using vsr::bench::Options;

vsr::optim::Reduction reduction_named(const std::string& name) {
  static const std::map<std::string, vsr::optim::Reduction> kNames = {
      {"exact", vsr::optim::Reduction::exact},
      {"allreduce", vsr::optim::Reduction::allreduce},
      {"fast", vsr::optim::Reduction::fast}};
  const auto found = kNames.find(name);
  if (found == kNames.end())
    throw vsr::UsageError("--reduction " + name + ": expected exact, allreduce or fast");
  return found->second;
}

// One step after its gradients are there: whole, reduce, agree, update, publish, rest; of the rank
// that took longest.
std::vector<double> timed_step(vsr::comm::Communicator& world,
                               vsr::optim::Fp16Optimizer& optimizer) {
  world.barrier();
  const auto start = std::chrono::steady_clock::now();
  optimizer.clip_fp32_grads(vsr::bench::kMaxNorm);
  const vsr::optim::StepReport report = optimizer.step();
  const double whole = vsr::bench::ms_since(start);
  if (!report.applied) throw vsr::ArgumentError("a timed step was skipped");
  const double named = report.reduce_ms + report.agree_ms + report.update_ms + report.publish_ms;
  const std::vector<double> mine = {
      whole, report.reduce_ms, report.agree_ms, report.update_ms, report.publish_ms, whole - named};
  return vsr::bench::slowest_row(world, mine);
}

nlohmann::json measure(vsr::comm::Communicator& world, const Options& options) {
  torch::set_num_threads(options.threads);
  const vsr::optim::Reduction reduction = reduction_named(options.reduction);
  const double check_error = vsr::bench::check_step(world, reduction);

  const std::vector<torch::Tensor> parameters = vsr::bench::make_parameters(options);
  const std::vector<torch::Tensor> gradients =
      vsr::bench::make_gradients(parameters, static_cast<std::uint64_t>(world.rank()));
  const auto optimizer = vsr::bench::make_optimizer(parameters, world, 1e-6, reduction);
  std::vector<std::vector<double>> columns(6);
  for (int i = 0; i < options.warmup + options.iterations; ++i) {
    optimizer->zero_grad();
    optimizer->backward(vsr::bench::loss_with_gradients(parameters, gradients));
    const std::vector<double> row = timed_step(world, *optimizer);
    if (i < options.warmup) continue;
    for (std::size_t column = 0; column < columns.size(); ++column)
      columns[column].push_back(row[column]);
  }
  return {
      {"name", "ours"},
      {"checked", true},
      {"parameters", options.parameters()},
      {"check_error", check_error},
      {"reduction", options.reduction},
      {"times_ms", columns[0]},
      {"breakdown_ms",
       {{"reduce", columns[1]},
        {"agree", columns[2]},
        {"update", columns[3]},
        {"publish", columns[4]},
        {"rest", columns[5]}}},
      {"versions",
       {{"libtorch", TORCH_VERSION}, {"compiler", VSR_COMPILER}, {"build_type", VSR_BUILD_TYPE}}}};
}

}  // namespace

int main(int argc, char** argv) {
  return vsr::bench::run(argc, argv, measure);
}
