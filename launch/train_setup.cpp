// SPDX-License-Identifier: Apache-2.0
#include "launch/train_setup.hpp"

#include <filesystem>
#include <optional>
#include <variant>
#include <vector>

#include "comm/error.hpp"
#include "launch/plan.hpp"
#include "launch/step_settings.hpp"
#include "optim/lamb.hpp"
#include "runtime/precision/cpu_kernels.hpp"
#include "runtime/video/clip.hpp"

namespace vsr::launch {
namespace {

std::vector<std::filesystem::path> clips_of(const std::vector<std::string>& paths) {
  const std::vector<std::filesystem::path> list(paths.begin(), paths.end());
  return runtime::list_clips(list);
}

runtime::WindowDataset open_clips(const TrainOptions& options) {
  const runtime::DatasetOptions dataset{.num_frame = options.num_frame,
                                        .gt_size = options.gt_size,
                                        .scale = options.scale,
                                        .cache_bytes = options.cache_mib * 1024 * 1024};
  const std::vector<std::filesystem::path> train = clips_of(options.train);
  if (options.val.empty()) return {train, dataset};
  std::vector<runtime::ValidationClip> validation;
  for (const ValidationSet& set : options.val)
    for (const std::filesystem::path& clip : clips_of(set.paths))
      validation.push_back({set.name, clip});
  return {train, validation, dataset};
}

optim::Reduction reduction_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::exact:
      return optim::Reduction::exact;
    case Reduction::allreduce:
      return optim::Reduction::allreduce;
    case Reduction::fast:
      return optim::Reduction::fast;
  }
  throw ArgumentError("a reduction without a name");
}

optim::Overlap overlap_of(Overlap overlap) {
  switch (overlap) {
    case Overlap::automatic:
      return optim::Overlap::automatic;
    case Overlap::on:
      return optim::Overlap::on;
    case Overlap::off:
      return optim::Overlap::off;
  }
  throw ArgumentError("an overlap without a name");
}

template <class Adam, class Options>
std::unique_ptr<torch::optim::Optimizer> adam_like(const TrainOptions& options,
                                                   std::vector<torch::Tensor> parameters) {
  const auto [first, second] = betas_of(options);
  return std::make_unique<Adam>(
      std::move(parameters),
      Options(options.lr).betas({first, second}).weight_decay(options.weight_decay));
}

std::unique_ptr<torch::optim::Optimizer> inner_optimizer(const TrainOptions& options,
                                                         std::vector<torch::Tensor> parameters) {
  using namespace torch::optim;
  switch (options.optimizer) {
    case OptimizerKind::adam:
      return adam_like<Adam, AdamOptions>(options, std::move(parameters));
    case OptimizerKind::adamw:
      return adam_like<AdamW, AdamWOptions>(options, std::move(parameters));
    case OptimizerKind::lamb:
      return adam_like<optim::Lamb, optim::LambOptions>(options, std::move(parameters));
    case OptimizerKind::sgd:
      return std::make_unique<SGD>(std::move(parameters), SGDOptions(options.lr)
                                                              .momentum(momentum_of(options))
                                                              .nesterov(options.nesterov)
                                                              .weight_decay(options.weight_decay));
  }
  throw ArgumentError("an optimizer without a name");
}

/// The constants of the optimizer, by option name; those that count with its kind.
void add_optimizer_facts(const TrainOptions& options, nlohmann::json& json) {
  json["optimizer"] = to_string(options.optimizer);
  json["weight-decay"] = options.weight_decay;
  json["ema-decay"] = options.ema_decay;
  if (has_betas(options.optimizer)) {
    json["betas"] = betas_of(options);
  } else {
    json["momentum"] = momentum_of(options);
    json["nesterov"] = options.nesterov;
  }
}

/// What shapes the curve of the learning rate, by option name.
struct CurveFacts {
  nlohmann::json& json;
  void operator()(const optim::ConstantLr&) const {}
  void operator()(const optim::MultiStepLr& c) const {
    json["milestones"] = c.milestones;
    json["gamma"] = c.gamma;
  }
  void operator()(const optim::CosineLr& c) const {
    json["total-iter"] = c.total_steps;
    json["eta-min"] = c.eta_min;
  }
  void operator()(const optim::CosineRestartLr& c) const {
    json["periods"] = c.periods;
    json["restart-weights"] =
        c.restart_weights.empty() ? std::vector<double>(c.periods.size(), 1.0) : c.restart_weights;
    json["eta-min"] = c.eta_min;
  }
  void operator()(const optim::TriangularLr& c) const {
    json["stepsize"] = c.stepsize;
    json["eta-min"] = c.min_lr;
  }
  void operator()(const optim::OneCycleLr& c) const {
    json["total-iter"] = c.total_steps;
    json["pct-start"] = c.pct_start;
    json["anneal-strategy"] = c.anneal == optim::Anneal::cos ? "cos" : "linear";
    json["div-factor"] = c.div_factor;
    json["final-div-factor"] = c.final_div_factor;
  }
};

std::vector<HeldOut> held_out_sets(const runtime::WindowDataset& data) {
  std::vector<HeldOut> sets;
  for (std::int64_t i = 0; i < data.held_out_count(); ++i) {
    const std::string name = data.held_out_name(i);
    if (sets.empty() || sets.back().name != name) sets.push_back({name, 0});
    ++sets.back().frames;
  }
  return sets;
}

}  // namespace

void set_up_process(int threads) {
  at::set_num_threads(threads);
  at::set_num_interop_threads(1);
  runtime::install_cpu_half_kernels();
}

runtime::WindowDataset open_data(const TrainOptions& options, comm::Communicator& world) {
  std::optional<runtime::WindowDataset> data;
  world.agree_all_ok("opening the clips", [&] { data.emplace(open_clips(options)); });
  return std::move(*data);
}

runtime::ModelOptions model_options(const TrainOptions& options) {
  return runtime::complete({.name = options.model,
                            .scale = options.scale,
                            .num_frame = options.num_frame,
                            .channels = options.channels,
                            .blocks = options.blocks,
                            .seed = options.seed});
}

runtime::Precision precision_of(Precision precision) {
  return runtime::precision_from_name(std::string(to_string(precision)));
}

runtime::Sampler make_sampler(const TrainOptions& options, std::int64_t window_count) {
  return runtime::Sampler(
      {.seed = options.seed,
       .window_count = window_count,
       .batch = options.batch,
       .leaves = options.leaves,
       .augment = options.augment ? runtime::Augment::flips : runtime::Augment::off});
}

runtime::LoopOptions loop_options(const TrainOptions& options) {
  runtime::LoopOptions loop{.total_iter = options.total_iter,
                            .save_freq = options.save_freq,
                            .val_freq = options.val_freq,
                            .save_minutes = options.save_minutes,
                            .keep = options.keep,
                            .keep_every = options.keep_every,
                            .keep_best = options.keep_best,
                            .sync_saves = options.sync_save,
                            .save_at_start = options.resume.mode == ResumeMode::path,
                            .clip_grad = options.clip_grad,
                            .schedule = make_schedule(options),
                            .force_overflow = std::nullopt};
  if (options.force_overflow_at)
    loop.force_overflow =
        std::pair(options.force_overflow_at->iter, options.force_overflow_at->leaf);
  return loop;
}

std::unique_ptr<optim::Fp16Optimizer> make_optimizer(const TrainOptions& options,
                                                     runtime::Fp16Module<runtime::VsrNet>& net,
                                                     comm::Communicator& world) {
  auto inner = inner_optimizer(options, net.parameters());
  optim::Fp16OptimizerOptions settings;
  settings.dynamic_loss_scale = has_dynamic_loss_scale(options);
  settings.static_loss_scale = needs_loss_scale(options.precision) ? options.loss_scale.value : 1.0;
  settings.scaler = loss_scaler_options(options);
  settings.leaves = options.leaves;
  settings.reduction = reduction_of(options.reduction);
  settings.overlap = overlap_of(options.overlap);
  settings.bucket_bytes = static_cast<std::size_t>(options.bucket_mib) << 20;
  settings.parameters = net.named_parameters_with_masters();
  settings.buffers = net.named_buffers();
  settings.ema_decay = options.ema_decay;
  settings.replica_check_steps = options.check_replicas;
  return std::make_unique<optim::Fp16Optimizer>(std::move(inner), world, std::move(settings));
}

nlohmann::json configuration_of(const TrainOptions& options, const runtime::WindowDataset& data) {
  const runtime::ModelOptions model = model_options(options);
  nlohmann::json json = {{"model", model.name},
                         {"scale", model.scale},
                         {"num-frame", model.num_frame},
                         {"channels", model.channels},
                         {"blocks", model.blocks},
                         {"gt-size", options.gt_size},
                         {"batch", options.batch},
                         {"leaves", options.leaves},
                         {"augment", options.augment},
                         {"precision", to_string(options.precision)},
                         {"reduction", to_string(options.reduction)},
                         {"loss-scale", to_string(options.loss_scale)},
                         {"threads", options.threads},
                         {"seed", options.seed},
                         {"loss", options.loss},
                         {"lr", options.lr},
                         {"clip-grad", options.clip_grad},
                         {"scheduler", to_string(options.scheduler)},
                         {"warmup-iter", options.warmup_iter},
                         {"training clips", data.clip_facts()}};
  add_optimizer_facts(options, json);
  std::visit(CurveFacts{json}, make_schedule(options).curve());
  if (has_dynamic_loss_scale(options)) {
    json["loss-scaler"] = options.loss_scaler.value_or("vsr");
    json["loss-scale-window"] = loss_scaler_options(options).window_steps;
  }
  return json;
}

runtime::ModelOptions model_options_of(const nlohmann::json& configuration) {
  try {
    return runtime::complete({.name = configuration.at("model").get<std::string>(),
                              .scale = configuration.at("scale").get<int>(),
                              .num_frame = configuration.at("num-frame").get<int>(),
                              .channels = configuration.at("channels").get<int>(),
                              .blocks = configuration.at("blocks").get<int>(),
                              .seed = 0});
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(std::string("the configuration in the checkpoint is incomplete: ") +
                          error.what());
  }
}

std::string describe_plan(const TrainOptions& options, const runtime::WindowDataset& data,
                          std::int64_t parameters, int world) {
  return data.describe() + plan_text({.model = options.model,
                                      .precision = std::string(to_string(options.precision)),
                                      .reduction = std::string(to_string(options.reduction)),
                                      .optimizer = optimizer_text(options),
                                      .loss_scale = loss_scale_text(options),
                                      .notices = idle_choices(options),
                                      .fp32_arrays = fp32_arrays(options),
                                      .world = world,
                                      .leaves = options.leaves,
                                      .batch = options.batch,
                                      .clips = data.train_clip_count(),
                                      .samples = data.window_count(),
                                      .total_iter = options.total_iter,
                                      .warmup_iter = options.warmup_iter,
                                      .parameters = parameters,
                                      .gradient_bytes = static_cast<int>(c10::elementSize(
                                          runtime::replica_dtype(precision_of(options.precision)))),
                                      .held_out = held_out_sets(data),
                                      .learning_rate = make_schedule(options)});
}

}  // namespace vsr::launch
