// SPDX-License-Identifier: Apache-2.0
// A network that takes and returns FP32 values and computes in FP16 or BF16 inside, so that losses,
// data and metrics never see a reduced dtype. It also hands the optimizer the FP32 parameters as
// they were before rounding: a master made from the rounded replica would lose the bits that small
// updates live in.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

#include "optim/module_tensors.hpp"
#include "runtime/precision/borders.hpp"
#include "runtime/precision/convert.hpp"
#include "runtime/precision/keep_in_fp32.hpp"
#include "runtime/precision/precision.hpp"
#include "runtime/precision/replica.hpp"

namespace vsr::runtime {

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
  std::vector<optim::NamedParameter> named_parameters_with_masters() { return masters_.take(); }

  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

 protected:
  /// @throws ConfigurationError for an FP64 parameter, and as Borders
  ReducedModule(std::shared_ptr<torch::nn::Module> module, Precision precision,
                const KeepInFp32& keep, bool draws_borders);
  ~ReducedModule() = default;
  ReducedModule(ReducedModule&&) = default;
  ReducedModule& operator=(ReducedModule&&) = default;

  at::DeviceType device() const;
  const Borders& borders() const noexcept { return borders_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Precision precision_;
  Borders borders_;
  Masters masters_;
};

/// A network that wants its FP32 input as it is and casts inside, before each of its layers, says
/// so with `static constexpr bool kCastsItsInput = true;`.
template <class Net>
concept CastsItsInput = requires {
  requires Net::kCastsItsInput;
};

/// FP32 in, `precision` inside, FP32 out, for arguments and results nested as Conversion allows.
///
/// `Net` is any torch::nn::Module with a `forward`; its arguments may be named by passing a struct
/// with fields() or a map of tensors. What is kept in FP32 and where casts are made: KeepInFp32 and
/// Borders. Rank-free: never communicates. One thread at a time, as the network itself.
template <class Net>
class Fp16Module : public ReducedModule {
 public:
  /// Rounds the parameters and buffers of `net` in place.
  /// @throws ArgumentError without a network; ConfigurationError for an FP64 parameter, and as
  ///         Borders
  explicit Fp16Module(std::shared_ptr<Net> net, Precision precision = Precision::fp16,
                      const KeepInFp32& keep = {})
      : ReducedModule(net, precision, keep, CastsItsInput<Net>), net_(std::move(net)) {}
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
      return fp16_to_fp32(net_->forward(args...));
    }
    if constexpr (CastsItsInput<Net>) {
      const Borders::Scope scope(borders());
      return convert(net_->forward(args...), dtype(), at::kFloat);
    } else {
      if (precision() == Precision::fp32) return net_->forward(args...);
      const Borders::Scope scope(borders());
      return convert(borders().run(*net_, args...), dtype(), at::kFloat);
    }
  }

  Net& net() noexcept { return *net_; }
  const Net& net() const noexcept { return *net_; }

 private:
  std::shared_ptr<Net> net_;
};

}  // namespace vsr::runtime
