// SPDX-License-Identifier: Apache-2.0
// The rows. Whoever adds an option adds a field to TrainOptions and a row here, and nothing else.
#include "launch/option_table.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>

#include "launch/option_rows.hpp"
#include "optim/loss_scaler.hpp"

namespace vsr::launch {
namespace {

const Lines kModels{"espcn", "vespcn"};
const Lines kLosses{"charbonnier", "l1", "mse"};

const std::string& non_empty(const std::string& text, const char* what) {
  if (text.empty()) throw BadValue{text, what};
  return text;
}

bool is_set_name(std::string_view text) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; };
  return !text.empty() && std::all_of(text.begin(), text.end(), allowed);
}

void add_validation_paths(TrainOptions& o, Values values) {
  const auto equals = values[0].find('=');
  const auto name = values[0].substr(0, equals);
  if (equals == std::string::npos || !is_set_name(name) || equals + 1 == values[0].size())
    throw BadValue{values[0], "NAME=PATH with a NAME of letters, digits, '_' and '-'"};
  auto set = std::find_if(o.val.begin(), o.val.end(), [&](auto& s) { return s.name == name; });
  if (set == o.val.end()) set = o.val.insert(o.val.end(), {name, {}});
  set->paths.push_back(values[0].substr(equals + 1));
  for (const auto& path : values.subspan(1)) {
    if (const auto at = path.find('='); at != std::string::npos && is_set_name(path.substr(0, at)))
      throw BadValue{path, "another path of " + name +
                               "; a further set needs its own --val, and a "
                               "path with '=' a leading ./"};
    set->paths.push_back(non_empty(path, "a path"));
  }
}

std::string one_of(const std::string& text, const Lines& names) {
  if (std::find(names.begin(), names.end(), text) == names.end()) throw_bad_choice(text, names);
  return text;
}

/// Dynamic scaling's rules, each after what a program of that name does.
OptionRow loss_scaler_row() {
  const auto known = optim::loss_scaler_rules();
  const Lines names(known.begin(), known.end());
  OptionRow r{"loss-scaler", OptionGroup::communication, "RULES",
              "vsr (from 65536, doubled after 2000 clean steps, halved on overflow), torch, apex, "
              "dali, megatron or deepspeed",
              "vsr"};
  r.set = [names](TrainOptions& o, Values v) { o.loss_scaler = one_of(v[0], names); };
  r.get = [](const TrainOptions& o) { return o.loss_scaler ? Lines{*o.loss_scaler} : Lines{}; };
  return r;
}

LossScale loss_scale(const std::string& text) {
  if (text == "dynamic") return {};
  return {false, real_number(text, "dynamic or a number above 0", positive)};
}

Resume resume(const std::string& text) {
  if (text == "never") return {ResumeMode::never, {}};
  if (text == "auto") return {ResumeMode::automatic, {}};
  if (text == "must") return {ResumeMode::must, {}};
  return {ResumeMode::path, non_empty(text, "never, auto, must or the path of a checkpoint")};
}

ForcedOverflow forced_overflow(const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) throw BadValue{text, "ITER:LEAF"};
  return {whole_number<std::int64_t>(text.substr(0, colon), 1),
          whole_number<int>(text.substr(colon + 1), 0)};
}

void add_data_rows(std::vector<OptionRow>& t) {
  constexpr auto g = OptionGroup::data;
  OptionRow train{"train", g,    "PATH...", "clips, and folders of clips, to train on (required)",
                  "",      true, true};
  train.set = [](TrainOptions& o, Values values) {
    for (const auto& path : values) o.train.push_back(non_empty(path, "a path"));
  };
  train.get = [](const TrainOptions& o) { return o.train; };
  t.push_back(std::move(train));
  OptionRow val{"val",
                g,
                "NAME=PATH...",
                "held-out clips, scored together under NAME; repeatable",
                "last 20 % of each training clip",
                true,
                true};
  val.set = add_validation_paths;
  val.get = [](const TrainOptions& o) {
    Lines lines;
    for (const auto& set : o.val)
      for (const auto& path : set.paths) lines.push_back(set.name + "=" + path);
    return lines;
  };
  t.push_back(std::move(val));
  t.push_back(row(
      g, "scale", "2|3|4", "factor between low and high resolution",
      [](TrainOptions& o, const std::string& v) {
        o.scale = std::stoi(one_of(v, {"2", "3", "4"}));
      },
      [](const TrainOptions& o) { return std::to_string(o.scale); }));
  t.push_back(row(
      g, "num-frame", "N", "frames the network sees at once; odd",
      [](TrainOptions& o, const std::string& v) {
        const char* expected = "an odd whole number from 1 to 31";
        int frames = 0;
        try {
          frames = whole_number<int>(v, 1, 31);
        } catch (const BadValue&) {
        }
        if (frames % 2 == 0) throw BadValue{v, expected};
        o.num_frame = frames;
      },
      [](const TrainOptions& o) { return std::to_string(o.num_frame); }, "3, or 1 for espcn"));
  t.push_back(whole(g, "gt-size", "PIXELS",
                    "side of the high-resolution crops; a multiple of --scale",
                    &TrainOptions::gt_size, 16, 4096));
  t.push_back(flag(g, "no-augment", "crops as they are: no flips, no transposition", true,
                   &TrainOptions::augment, false));
  t.push_back(whole<std::int64_t>(g, "cache-mib", "MIB",
                                  "decoded frames kept in memory, MiB per rank",
                                  &TrainOptions::cache_mib, 0, 1 << 24));
}

void add_network_rows(std::vector<OptionRow>& t) {
  constexpr auto g = OptionGroup::network;
  t.push_back(row(
      g, "model", "NAME", "network: espcn (one frame), vespcn (early fusion of several)",
      [](TrainOptions& o, const std::string& v) { o.model = one_of(v, kModels); },
      [](const TrainOptions& o) { return o.model; }));
  t.push_back(whole(g, "channels", "N", "width of the network; 0: its own default",
                    &TrainOptions::channels, 0, 4096));
  t.push_back(whole(g, "blocks", "N", "depth of the network; 0: its own default",
                    &TrainOptions::blocks, 0, 1024));
}

void add_training_rows(std::vector<OptionRow>& t) {
  constexpr auto g = OptionGroup::training;
  t.push_back(whole(g, "batch", "SAMPLES", "samples in a leaf, the unit of every sum",
                    &TrainOptions::batch, 1, 65536));
  t.push_back(whole(g, "leaves", "N", "leaves in a step, over all ranks; sums are exact up to 8192",
                    &TrainOptions::leaves, 1, 8192));
  t.push_back(whole<std::int64_t>(g, "total-iter", "ITERATIONS",
                                  "length of the run, skipped steps included",
                                  &TrainOptions::total_iter, 1));
  add_optimizer_rows(t);
  t.push_back(row(
      g, "loss", "NAME", "charbonnier, l1 or mse; mean over a leaf",
      [](TrainOptions& o, const std::string& v) { o.loss = one_of(v, kLosses); },
      [](const TrainOptions& o) { return o.loss; }));
  t.push_back(real(g, "clip-grad", "largest 2-norm of the gradient; 0: off",
                   &TrainOptions::clip_grad, "a number of at least 0", not_negative));
  add_schedule_rows(t);
  t.push_back(whole<std::uint64_t>(g, "seed", "N", "of shuffle, crops and first weights",
                                   &TrainOptions::seed, 0));
}

void add_communication_rows(std::vector<OptionRow>& t) {
  constexpr auto g = OptionGroup::communication;
  t.push_back(choices(g, "precision", "of the replicas; masters are FP32 always",
                      &TrainOptions::precision, kPrecisions));
  t.push_back(row(
      g, "loss-scale", "dynamic|NUMBER",
      "dynamic: by the rules of --loss-scaler; a number: always that, best a power of two",
      [](TrainOptions& o, const std::string& v) { o.loss_scale = loss_scale(v); },
      [](const TrainOptions& o) { return to_string(o.loss_scale); }));
  t.push_back(loss_scaler_row());
  t.push_back(whole<std::int64_t>(g, "loss-scale-window", "STEPS",
                                  "clean steps before the loss scale grows",
                                  &TrainOptions::loss_scale_window, 1, "that of --loss-scaler"));
  t.push_back(choices(g, "reduction", "exact: the same bits on any number of ranks",
                      &TrainOptions::reduction, kReductions));
  t.push_back(choices(g, "backend", "auto: mpi, until steps run on GPUs", &TrainOptions::backend,
                      kBackends));
  t.push_back(choices(g, "overlap",
                      "send gradients of exact within the backward pass; auto: over nccl",
                      &TrainOptions::overlap, kOverlaps));
  t.push_back(whole<std::int64_t>(g, "bucket-mib", "MIB",
                                  "of gradients that leave together; 0: a quarter of them, 1 to 25",
                                  &TrainOptions::bucket_mib, 0));
  t.push_back(
      whole(g, "threads", "N", "threads per rank, on CPUs", &TrainOptions::threads, 1, 1024));
  t.push_back(whole(g, "timeout", "SECONDS",
                    "end the job when a rank gives no sign of life for so long; 0: wait for ever",
                    &TrainOptions::timeout_s, 0, 1 << 20));
  t.push_back(whole<std::int64_t>(g, "check-replicas", "ITERATIONS",
                                  "between comparisons of the replicas of all ranks; 0: never",
                                  &TrainOptions::check_replicas, 0));
}

OptionRow allow_drift_row() {
  OptionRow r = list<std::string>(
      OptionGroup::output, "allow-drift", "OPTION…",
      "with --resume: options of the run that may be others now", &TrainOptions::allow_drift,
      [](const std::string& text) {
        std::istringstream words(text);
        return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
      },
      [](const std::vector<std::string>& keys) { return fmt::format("{}", fmt::join(keys, " ")); });
  r.in_file = false;
  return r;
}

void add_output_rows(std::vector<OptionRow>& t) {
  constexpr auto g = OptionGroup::output;
  t.push_back(row(
      g, "out", "FOLDER", "folder of the run",
      [](TrainOptions& o, const std::string& v) { o.out = non_empty(v, "a folder"); },
      [](const TrainOptions& o) { return o.out; }, "runs/MODEL"));
  t.push_back(whole<std::int64_t>(g, "save-freq", "ITERATIONS",
                                  "between checkpoints; 0: only at the end",
                                  &TrainOptions::save_freq, 0));
  t.push_back(whole<std::int64_t>(g, "val-freq", "ITERATIONS",
                                  "between validations; 0: only at the end",
                                  &TrainOptions::val_freq, 0));
  t.push_back(whole<std::int64_t>(g, "print-freq", "ITERATIONS", "between lines of the log",
                                  &TrainOptions::print_freq, 1));
  t.push_back(real(g, "save-minutes", "minutes between checkpoints, beside --save-freq; 0: off",
                   &TrainOptions::save_minutes, "a number of at least 0", not_negative));
  t.push_back(flag(g, "sync-save", "training waits for the disk, not only for a copy of its state",
                   true, &TrainOptions::sync_save, true));
  t.push_back(whole(g, "keep", "N", "newest checkpoints kept", &TrainOptions::keep, 1, 1 << 20));
  t.push_back(whole<std::int64_t>(g, "keep-every", "ITERATIONS",
                                  "checkpoints of multiples of it are kept too; 0: none",
                                  &TrainOptions::keep_every, 0));
  t.push_back(flag(g, "keep-best", "keep the best by PSNR-Y too; saves when a validation improves",
                   true, &TrainOptions::keep_best, true));
  t.push_back(row(
      g, "resume", "never|auto|must|PATH",
      "auto: go on where there is a checkpoint; must: fail where there is none",
      [](TrainOptions& o, const std::string& v) { o.resume = resume(v); },
      [](const TrainOptions& o) { return to_string(o.resume); }));
  t.push_back(allow_drift_row());
}

void add_other_rows(std::vector<OptionRow>& t) {
  constexpr auto g = OptionGroup::other;
  OptionRow config{"config", g, "FILE", "lines of option = value; options given here win", ""};
  config.in_file = false;
  config.set = [](TrainOptions& o, Values v) { o.config = non_empty(v[0], "a file"); };
  config.get = [](const TrainOptions&) { return Lines{}; };
  t.push_back(std::move(config));
  t.push_back(flag(g, "dry-run", "print the plan and end", false, &TrainOptions::dry_run, true));
  t.push_back(flag(g, "version", "print commit, compiler and libraries, and end", false,
                   &TrainOptions::version, true));
  t.push_back(flag(g, "help", "print this text and end", false, &TrainOptions::help, true));
  OptionRow force{"force-overflow-at", OptionGroup::hidden, "ITER:LEAF",
                  "infinity in a gradient, for tests", ""};
  force.set = [](TrainOptions& o, Values v) { o.force_overflow_at = forced_overflow(v[0]); };
  force.get = [](const TrainOptions& o) {
    if (!o.force_overflow_at) return Lines{};
    return Lines{fmt::format("{}:{}", o.force_overflow_at->iter, o.force_overflow_at->leaf)};
  };
  t.push_back(std::move(force));
}

std::vector<OptionRow> make_table() {
  std::vector<OptionRow> table;
  add_data_rows(table);
  add_network_rows(table);
  add_training_rows(table);
  add_communication_rows(table);
  add_output_rows(table);
  add_other_rows(table);
  return table;
}

}  // namespace

const std::vector<OptionRow>& option_table() {
  static const std::vector<OptionRow> table = make_table();
  return table;
}

const OptionRow* find_option(std::string_view name) {
  for (const auto& candidate : option_table())
    if (candidate.name == name) return &candidate;
  return nullptr;
}

std::vector<std::string> visible_option_names() {
  std::vector<std::string> names;
  for (const auto& candidate : option_table())
    if (candidate.group != OptionGroup::hidden) names.push_back(candidate.name);
  return names;
}

}  // namespace vsr::launch
