// SPDX-License-Identifier: Apache-2.0
// What the parity tests drive from Python: takes recorded gradients through Fp16Optimizer (or
// through LibTorch's own FP32 optimizer of the same name) and leaves the masters in a file, or runs
// a list of overflow flags through LossScaler. Alone or under mpirun; every rank gives the same
// gradients as its leaf, so that their mean is the recorded gradient to the last bit.
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/error.hpp"
#include "comm/mpi_environment.hpp"
#include "optim/fp16_optimizer.hpp"
#include "optim/lamb.hpp"
#include "optim/update_rule.hpp"

namespace {

using nlohmann::json;
using torch::Tensor;
using vsr::optim::Fp16Optimizer;
using vsr::optim::LossScaler;
using vsr::optim::LossScalerOptions;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

// A file of FP32 values, row by row.
Tensor read_rows(const std::filesystem::path& path, std::int64_t rows, std::int64_t columns) {
  Tensor values = torch::empty({rows, columns}, torch::kFloat);
  std::ifstream stream(path, std::ios::binary);
  stream.read(static_cast<char*>(values.data_ptr()), static_cast<std::streamsize>(values.nbytes()));
  if (!stream || stream.peek() != std::ifstream::traits_type::eof())
    throw vsr::DataError(path.string() + ": expected " + std::to_string(values.nbytes()) +
                         " bytes of FP32 values");
  return values;
}

// The parameters that a job describes, and their FP32 values before rounding.
struct Network {
  explicit Network(const json& job, const std::filesystem::path& folder) {
    for (const json& parameter : job.at("parameters")) {
      const auto shape = parameter.get<std::vector<std::int64_t>>();
      shapes.push_back(shape);
      sizes.push_back(c10::multiply_integers(shape));
      elements += sizes.back();
    }
    const Tensor initial = read_rows(folder / job.at("initial"), 1, elements)[0];
    const auto type = job.at("dtype") == "fp16" ? torch::kHalf : torch::kFloat;
    for (const Tensor& values : split(initial)) {
      masters.push_back(values.clone());
      replicas.push_back(values.to(type, false, true).set_requires_grad(true));
    }
  }

  // A row cut into tensors of the parameters' shapes.
  std::vector<Tensor> split(const Tensor& row) const {
    std::vector<Tensor> tensors = row.split_with_sizes(sizes);
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i] = tensors[i].reshape(shapes[i]);
    return tensors;
  }

  // A loss whose gradient is `row`: sum of replica * row.
  Tensor loss(const Tensor& row) const {
    Tensor sum = torch::zeros({}, torch::kFloat);
    const std::vector<Tensor> gradients = split(row);
    for (std::size_t i = 0; i < replicas.size(); ++i)
      sum = sum + (replicas[i].to(torch::kFloat) * gradients[i]).sum();
    return sum;
  }

  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<std::int64_t> sizes;
  std::int64_t elements = 0;
  std::vector<Tensor> masters;
  std::vector<Tensor> replicas;
};

template <typename Kind, typename Options>
std::unique_ptr<torch::optim::Optimizer> make(const Groups& groups) {
  return std::make_unique<Kind>(groups, Options(1e-3));
}

std::unique_ptr<torch::optim::Optimizer> make_inner(const json& job, const Network& network) {
  const std::map<std::string, std::unique_ptr<torch::optim::Optimizer> (*)(const Groups&)> kinds = {
      {"adam", make<torch::optim::Adam, torch::optim::AdamOptions>},
      {"adamw", make<torch::optim::AdamW, torch::optim::AdamWOptions>},
      {"sgd", make<torch::optim::SGD, torch::optim::SGDOptions>},
      {"rmsprop", make<torch::optim::RMSprop, torch::optim::RMSpropOptions>},
      {"adagrad", make<torch::optim::Adagrad, torch::optim::AdagradOptions>},
      {"lamb", make<vsr::optim::Lamb, vsr::optim::LambOptions>}};
  Groups groups;
  for (const json& group : job.at("groups")) {
    std::vector<Tensor> members;
    for (const std::size_t index : group.at("parameters"))
      members.push_back(network.replicas.at(index));
    groups.emplace_back(std::move(members));
  }
  auto inner = kinds.at(job.at("optimizer").get<std::string>())(groups);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto& options = inner->param_groups()[i].options();
    auto numbers = vsr::optim::read_options(options);
    for (const auto& [name, value] : job.at("groups")[i].at("options").items()) {
      if (!numbers.contains(name)) throw vsr::UsageError("no option of this optimizer: " + name);
      numbers[name] = value.get<double>();
    }
    vsr::optim::write_options(options, numbers);
  }
  return inner;
}

// Where the masters go: one row of all parameters for each recorded step. Ranks write what they
// own.
class MasterFile {
 public:
  MasterFile(vsr::comm::Communicator& world, const std::filesystem::path& path,
             std::int64_t elements)
      : elements_(elements) {
    world.agree_all_ok("making the file of masters", [&] {
      if (world.rank() == 0) open(path, std::ios::out | std::ios::trunc);
    });
    world.agree_all_ok("opening the file of masters", [&] {
      if (world.rank() != 0) open(path, std::ios::out | std::ios::in);
    });
  }

  void write(std::int64_t begin, std::span<const float> values) {
    stream_.seekp(static_cast<std::streamoff>(sizeof(float)) * (row_ * elements_ + begin));
    stream_.write(reinterpret_cast<const char*>(values.data()),
                  static_cast<std::streamsize>(values.size_bytes()));
  }
  void end_row() {
    if (!stream_.flush()) throw vsr::IoError("the masters could not be written");
    ++row_;
  }

 private:
  void open(const std::filesystem::path& path, std::ios::openmode mode) {
    stream_.open(path, mode | std::ios::binary);
    if (!stream_) throw vsr::IoError("cannot open " + path.string());
  }
  std::fstream stream_;
  std::int64_t elements_;
  std::int64_t row_ = 0;
};

// LibTorch by itself: FP32 parameters, its own step.
void step_plain(const json& job, const Network& network, torch::optim::Optimizer& optimizer,
                const Tensor& gradients, MasterFile& file) {
  const std::int64_t every = job.at("every");
  for (std::int64_t step = 0; step < gradients.size(0); ++step) {
    const std::vector<Tensor> row = network.split(gradients[step]);
    for (std::size_t i = 0; i < row.size(); ++i) {
      Tensor replica = network.replicas[i];
      replica.mutable_grad() = row[i].clone();
    }
    optimizer.step();
    if ((step + 1) % every != 0) continue;
    std::int64_t begin = 0;
    for (const Tensor& replica : network.replicas) {
      file.write(begin,
                 {replica.const_data_ptr<float>(), static_cast<std::size_t>(replica.numel())});
      begin += replica.numel();
    }
    file.end_row();
  }
}

// The rules of torch.amp.GradScaler with the numbers of a job.
LossScalerOptions scaler_options(const json& numbers) {
  LossScalerOptions options = LossScalerOptions::torch_amp();
  options.initial_scale = numbers.at("init_scale");
  options.growth_factor = numbers.at("growth_factor");
  options.backoff_factor = numbers.at("backoff_factor");
  options.window_steps = numbers.at("growth_interval");
  options.powers_of_two = numbers.at("powers_of_two");
  // The sequence goes on however often it overflows.
  options.max_skips_at_floor = std::numeric_limits<std::int64_t>::max();
  return options;
}

Fp16Optimizer make_optimizer(const json& job, const Network& network,
                             vsr::comm::Communicator& world) {
  vsr::optim::Fp16OptimizerOptions options;
  for (std::size_t i = 0; i < network.replicas.size(); ++i)
    options.parameters.push_back(
        {"parameter_" + std::to_string(i), network.replicas[i], network.masters[i]});
  options.static_loss_scale = job.at("loss_scale");
  if (job.contains("scaler")) {
    options.dynamic_loss_scale = true;
    options.scaler = scaler_options(job.at("scaler"));
  }
  return Fp16Optimizer(make_inner(job, network), world, std::move(options));
}

double norm_type(const json& clip) {
  const json& norm = clip.at("norm");
  return norm == "inf" ? std::numeric_limits<double>::infinity() : norm.get<double>();
}

// Whole gradients as the step will apply them; the same on all ranks, so rank 0 writes.
void write_gradients(vsr::comm::Communicator& world, Fp16Optimizer& optimizer,
                     std::ofstream& stream) {
  for (const Tensor& gradient : optimizer.inspect_fp32_grad_data()) {
    const Tensor values = gradient.contiguous();
    if (world.rank() == 0)
      stream.write(static_cast<const char*>(values.const_data_ptr()),
                   static_cast<std::streamsize>(values.nbytes()));
  }
}

json step_ours(const json& job, const std::filesystem::path& folder, const Network& network,
               vsr::comm::Communicator& world, const Tensor& gradients, MasterFile& file) {
  Fp16Optimizer optimizer = make_optimizer(job, network, world);
  std::ofstream inspected;
  if (job.contains("inspect"))
    inspected.open(folder / job.at("inspect"), std::ios::binary | std::ios::trunc);
  json report = {{"norms", json::array()}, {"applied", json::array()}, {"scales", json::array()}};
  const std::int64_t every = job.at("every");
  for (std::int64_t step = 0; step < gradients.size(0); ++step) {
    optimizer.zero_grad();
    optimizer.backward(network.loss(gradients[step]));
    if (job.contains("clip"))
      report["norms"].push_back(
          optimizer.clip_fp32_grads(job["clip"].at("max_norm"), norm_type(job["clip"])));
    if (inspected.is_open()) write_gradients(world, optimizer, inspected);
    report["applied"].push_back(optimizer.step().applied);
    report["scales"].push_back(optimizer.loss_scale());
    if ((step + 1) % every != 0) continue;
    const vsr::optim::ShardView shard = optimizer.shard();
    const std::size_t master = shard.index_of("master");
    for (const vsr::optim::ShardPiece& piece : shard.pieces)
      file.write(piece.logical.begin, piece.values[master]);
    file.end_row();
  }
  if (inspected.is_open() && !inspected.flush())
    throw vsr::IoError("the gradients could not be written");
  return report;
}

json run_training(const json& job, const std::filesystem::path& folder,
                  vsr::comm::Communicator& world) {
  const Network network(job, folder);
  const Tensor gradients =
      read_rows(folder / job.at("gradients"), job.at("steps"), network.elements);
  MasterFile file(world, folder / job.at("masters"), network.elements);
  if (job.at("engine") == "ours") return step_ours(job, folder, network, world, gradients, file);
  step_plain(job, network, *make_inner(job, network), gradients, file);
  return json::object();
}

json run_scaler(const json& job) {
  LossScaler scaler = LossScaler::dynamic(scaler_options(job.at("scaler")));
  std::vector<double> scales;
  for (const bool overflow : job.at("overflows")) {
    scaler.update(overflow);
    scales.push_back(scaler.scale());
  }
  return {{"scales", scales}};
}

// Each job of the file in turn; what they report goes to the file beside it.
void run(const std::filesystem::path& jobs, const std::filesystem::path& reports,
         vsr::comm::Communicator& world) {
  torch::set_num_threads(1);
  json all = json::array();
  for (const json& job : json::parse(std::ifstream(jobs)))
    all.push_back(job.at("kind") == "scaler" ? run_scaler(job)
                                             : run_training(job, jobs.parent_path(), world));
  if (world.rank() != 0) return;
  std::ofstream stream(reports);
  stream << all;
  if (!stream.flush()) throw vsr::IoError("cannot write " + reports.string());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    vsr::comm::MpiEnvironment mpi(argc, argv);
    if (argc != 3)
      throw vsr::UsageError("expected two arguments: the file of jobs, and of reports");
    const auto world = vsr::comm::make_communicator(vsr::comm::Backend::mpi);
    run(argv[1], argv[2], *world);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parity_driver: %s\n", error.what());
    vsr::comm::MpiEnvironment::abort(1);
  }
}
