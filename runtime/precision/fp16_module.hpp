// SPDX-License-Identifier: Apache-2.0
// A network that takes and returns FP32 values and computes in FP16 or BF16 inside, so that losses,
// data and metrics never see a reduced dtype. It also hands the optimizer the FP32 parameters as
// they were before rounding: a master made from the rounded replica would lose the bits that small
// updates live in.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optim/fp16_optimizer.hpp"
#include "runtime/precision/convert.hpp"
#include "runtime/precision/precision.hpp"

namespace vsr::runtime {

/// Which parts of a network keep FP32 parameters and buffers although the rest is reduced.
struct KeepInFp32 {
  /// Batch, instance, layer and group normalisation: their variances overflow FP16 early, and their
  /// running statistics would stop moving.
  bool normalisation = true;
  /// Paths of modules, such as "head" or "body.3"; everything below such a path is kept.
  std::vector<std::string> names{};
  /// Keeps a module, with all below it, when it returns true.
  std::function<bool(const std::string& path, const torch::nn::Module& module)> also{};
};

/// The part of Fp16Module that does not depend on the type of the network.
class ReducedModule {
 public:
  Precision precision() const noexcept { return precision_; }
  /// Dtype of the parameters that are not kept in FP32.
  at::ScalarType dtype() const noexcept { return replica_dtype(precision_); }

  /// Parameters of the network in registration order, as the optimizer and checkpoints name them.
  std::vector<torch::Tensor> parameters() const { return module_->parameters(); }
  /// Floating and integer buffers of the network (batch-norm statistics) in registration order.
  std::vector<optim::NamedBuffer> named_buffers() const;
  /// Give each parameter once (tied ones under their first name), in registration order, with its
  /// FP32 value from before rounding, and forget those values here. `master` of a parameter that is
  /// FP32 in the replica shares its storage.
  /// @throws ArgumentError when called twice: the unrounded values are gone
  std::vector<optim::NamedParameter> named_parameters_with_masters();

  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

 protected:
  /// @throws ConfigurationError for an FP64 parameter, or a kept name that is no module (all
  /// listed)
  ReducedModule(std::shared_ptr<torch::nn::Module> module, Precision precision,
                const KeepInFp32& keep);
  ~ReducedModule() = default;
  ReducedModule(ReducedModule&&) = default;
  ReducedModule& operator=(ReducedModule&&) = default;

  at::DeviceType device() const;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Precision precision_;
  std::vector<optim::NamedParameter> masters_;
  bool handed_out_ = false;
};

/// A network that wants its FP32 input as it is and casts inside says so with
/// `static constexpr bool kCastsItsInput = true;`.
template <class Net>
concept CastsItsInput = requires {
  requires Net::kCastsItsInput;
};

/// Run `net` with a cast before each module that has parameters, to the dtype of those, so that any
/// module of a Sequential may be kept in FP32.
torch::Tensor forward_with_borders(torch::nn::SequentialImpl& net, torch::Tensor x);

/// FP32 in, `precision` inside, FP32 out, for arguments and results nested as Conversion allows.
///
/// `Net` is any torch::nn::Module with a `forward`. Networks of our own (models::VsrNet) and
/// torch::nn::Sequential cast at the borders of kept modules; in others, normalisation layers may
/// be kept (LibTorch takes FP16 input with FP32 parameters there), and further modules only if the
/// network calls at_border itself. Rank-free: never communicates.
template <class Net>
class Fp16Module : public ReducedModule {
 public:
  explicit Fp16Module(std::shared_ptr<Net> net, Precision precision = Precision::fp16,
                      const KeepInFp32& keep = {})
      : ReducedModule(net, precision, keep), net_(std::move(net)) {}
  explicit Fp16Module(const torch::nn::ModuleHolder<Net>& net,
                      Precision precision = Precision::fp16, const KeepInFp32& keep = {})
      : Fp16Module(net.ptr(), precision, keep) {}

  /// Forward pass: FP32 tensors in `args` are cast, reduced tensors in the result come back as
  /// FP32.
  template <class... Args>
  auto operator()(const Args&... args) {
    return forward(args...);
  }

  template <class... Args>
  auto forward(const Args&... args) {
    if (precision() == Precision::amp) {
      AutocastScope scope(device());
      return fp16_to_fp32(call(args...));
    }
    if constexpr (CastsItsInput<Net>) {
      return convert(call(args...), dtype(), at::kFloat);
    } else {
      Conversion to_replica(at::kFloat, dtype());
      return convert(std::apply([this](const auto&... cast) { return call(cast...); },
                                std::tuple<Args...>{to_replica(args)...}),
                     dtype(), at::kFloat);
    }
  }

  Net& net() noexcept { return *net_; }
  const Net& net() const noexcept { return *net_; }

 private:
  template <class... Args>
  auto call(const Args&... args) {
    if constexpr (std::is_same_v<Net, torch::nn::SequentialImpl> && sizeof...(Args) == 1)
      return forward_with_borders(*net_, args...);
    else
      return net_->forward(args...);
  }

  std::shared_ptr<Net> net_;
};

}  // namespace vsr::runtime
