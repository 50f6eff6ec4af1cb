// SPDX-License-Identifier: Apache-2.0
#include "launch/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/counted.hpp"
#include "comm/error.hpp"
#include "runtime/log/format.hpp"

namespace vsr::launch {
namespace {

using runtime::format_bytes;
using runtime::format_count;

void add(std::string& text, const char* name, const std::string& value) {
  text += fmt::format("{:<16} {}\n", name, value);
}

/// 12345 as "12 345 clips".
std::string format_counted(std::int64_t count, const char* one) {
  return fmt::format("{} {}{}", format_count(count), one, count == 1 ? "" : "s");
}

std::string leaves_text(const PlanNumbers& n) {
  const int low = n.leaves / n.world;
  const int extra = n.leaves % n.world;
  const auto range = extra == 0 ? std::to_string(low) : fmt::format("{} to {}", low, low + 1);
  return fmt::format("{} per step of {}, {} per rank on {}", n.leaves, counted(n.batch, "sample"),
                     range, counted(n.world, "rank"));
}

std::string learning_rates(const PlanNumbers& n) {
  std::vector<std::int64_t> steps{0};
  if (n.warmup_iter > 0) steps.push_back(n.warmup_iter - 1);
  for (const int quarter : {1, 2, 3}) steps.push_back(n.total_iter * quarter / 4);
  steps.push_back(n.total_iter - 1);
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  std::string text;
  for (const auto step : steps)
    text +=
        fmt::format("{}{:.2e} at step {}", text.empty() ? "" : ", ", n.learning_rate(step), step);
  return text;
}

std::string held_out_text(const PlanNumbers& n) {
  std::int64_t total = 0;
  std::string sets;
  for (const auto& set : n.held_out) {
    total += set.frames;
    sets += fmt::format("{}{} {}", sets.empty() ? "" : ", ", set.name, format_count(set.frames));
  }
  return sets.empty()
             ? "none"
             : fmt::format("{}, in no training window ({})", format_counted(total, "frame"), sets);
}

// Where `exact` sends more than `fast`, it says how much that is.
std::string reduction_text(const PlanNumbers& n) {
  if (n.reduction != "exact" || n.world == 1 || n.leaves <= n.world) return n.reduction;
  return fmt::format("exact, {} sent per rank and step; fast would send {}",
                     format_bytes(sent_bytes_per_step(n, true)),
                     format_bytes(sent_bytes_per_step(n, false)));
}

}  // namespace

std::int64_t state_bytes_per_rank(const PlanNumbers& n) {
  VSR_CHECK(n.world >= 1, "the number of ranks must be positive");
  const std::int64_t sharded = (n.leaves > n.world ? 8 : 4) + 4 * n.fp32_arrays;
  return n.parameters * 4 + (n.parameters * sharded + n.world - 1) / n.world;
}

std::int64_t sent_bytes_per_step(const PlanNumbers& n, bool reduces_each_leaf) {
  VSR_CHECK(n.world >= 1, "the number of ranks must be positive");
  // Leaves of all ranks, or a sum of each rank that has one; the replica comes back once.
  const std::int64_t sums = reduces_each_leaf ? n.leaves : std::min(n.leaves, n.world);
  const std::int64_t others = n.world - 1;
  return (sums + n.world) * n.parameters * n.gradient_bytes * others / n.world / n.world;
}

std::int64_t checkpoint_bytes(const PlanNumbers& n) {
  return n.parameters * 4 * n.fp32_arrays;
}

std::string plan_text(const PlanNumbers& n) {
  VSR_CHECK(n.world >= 1, "the number of ranks must be positive");
  VSR_CHECK(n.leaves >= 1 && n.batch >= 1, "leaves and batch must be positive");
  VSR_CHECK(n.samples >= 1, "an epoch must hold a sample");
  VSR_CHECK(n.total_iter >= 1, "the run must have an iteration");
  VSR_CHECK(static_cast<bool>(n.learning_rate), "the schedule must be given");
  const auto per_step = static_cast<std::int64_t>(n.leaves) * n.batch;
  const auto per_epoch = static_cast<double>(n.samples) / static_cast<double>(per_step);
  std::string text;
  add(text, "network",
      fmt::format("{}, {} parameters, {}", n.model, format_count(n.parameters), n.precision));
  add(text, "data",
      fmt::format("{} per epoch from {}", format_counted(n.samples, "sample"),
                  format_counted(n.clips, "clip")));
  add(text, "held out", held_out_text(n));
  add(text, "leaves", leaves_text(n));
  if (n.leaves < n.world)
    add(text, "warning",
        fmt::format("ranks without a leaf: {} of {}; use --leaves {} or fewer ranks",
                    n.world - n.leaves, n.world, n.world));
  add(text, "reduction", reduction_text(n));
  add(text, "optimizer", n.optimizer);
  add(text, "loss scale", n.loss_scale);
  add(text, "iterations",
      fmt::format("{}, {:.2f} per epoch, {:.2f} epochs", format_count(n.total_iter), per_epoch,
                  static_cast<double>(n.total_iter) / per_epoch));
  add(text, "learning rate", learning_rates(n));
  add(text, "memory per rank",
      fmt::format("{} for parameters, gradients and optimizer, without activations and frames",
                  format_bytes(state_bytes_per_rank(n))));
  add(text, "checkpoint", format_bytes(checkpoint_bytes(n)));
  for (const std::string& notice : n.notices) add(text, "notice", notice);
  return text;
}

}  // namespace vsr::launch
