// SPDX-License-Identifier: Apache-2.0
// A layer kept in FP32 between FP16 neighbours needs a cast before it and one after it. LibTorch
// has no hook around a C++ module's forward, so the casts are made where the call can be seen: by
// the wrapper around the whole network, inside torch::nn::Sequential at any depth, and in networks
// that call their layers through run_at_border. What lies elsewhere and needs a cast is refused
// here.
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "runtime/precision/convert.hpp"
#include "runtime/precision/keep_in_fp32.hpp"

namespace vsr::runtime {

/// A torch::nn::Sequential that can be a part of another one, which LibTorch's own cannot, and
/// whose parts may be kept in FP32 as those of a plain one.
class NestedSequentialImpl final : public torch::nn::SequentialImpl {
 public:
  using SequentialImpl::SequentialImpl;
  torch::Tensor forward(const torch::Tensor& x);
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
};
TORCH_MODULE(NestedSequential);

/// The dtype in which each module of one network computes, and the casts that follow from it.
///
/// A kept module gets FP32 tensors, any other gets reduced ones. Which modules are reached: the
/// network itself; the parts of it when it is a torch::nn::Sequential, and the parts of every
/// NestedSequential among them; all modules below one that derives from DrawsBorders. Elsewhere, in
/// a class that calls its layers directly (also one derived from Sequential), batch and instance
/// normalisation, and on the CPU layer and group normalisation, take reduced input beside FP32
/// parameters and compute in FP32 inside, as softmax does; other kept modules are refused. Calls of
/// functions, such as torch::softmax, are the network's own affair.
class Borders {
 public:
  /// @param draws_borders the network casts below itself although its type does not say so
  /// @throws ConfigurationError for a name that is no module (lists all), for a kept module that no
  ///         cast can reach, and for a parameter that a kept and a reduced module share
  Borders(const torch::nn::Module& network, at::ScalarType reduced, const KeepInFp32& keep,
          bool draws_borders = false);

  /// True for the network and all modules below it.
  bool contains(const torch::nn::Module& module) const { return kept_.contains(&module); }
  bool is_kept(const torch::nn::Module& module) const {
    const auto found = kept_.find(&module);
    return found != kept_.end() && found->second;
  }
  /// True for parameters and buffers of kept modules.
  bool is_kept(const torch::Tensor& tensor) const {
    return kept_tensors_.contains(tensor.unsafeGetTensorImpl());
  }
  at::ScalarType reduced() const noexcept { return reduced_; }

  /// Call `layer.forward` with every FP32 or reduced tensor inside `args` in the layer's dtype.
  template <class Layer, class... Args>
  auto run(Layer& layer, const Args&... args) const;

  /// The borders of the wrapper whose forward pass this thread is in, else null.
  static const Borders* current() noexcept;

  /// Makes `borders` current for this thread while it lives.
  class Scope {
   public:
    explicit Scope(const Borders& borders) noexcept;
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const Borders* former_;
  };

 private:
  struct Tree;

  Conversion casts_before(const torch::nn::Module& module) const;
  template <class... Args>
  torch::nn::AnyValue run_any(torch::nn::AnyModule& layer, const Args&... args) const;
  template <class... Args>
  torch::nn::AnyValue run_all(torch::nn::SequentialImpl& net, const Args&... args) const;
  static void check_not_empty(const torch::nn::SequentialImpl& net);

  at::ScalarType reduced_;
  std::unordered_map<const torch::nn::Module*, bool> kept_;
  std::unordered_set<const at::TensorImpl*> kept_tensors_;
};

/// Call `layer` in the dtype the wrapper chose for it; networks that derive from DrawsBorders call
/// their layers so. Without a wrapper, for layers of another network than the wrapped one, and in
/// FP32 and autocast, `layer.forward(args...)` and no more.
///
/// The result has the dtype the layer gives: FP32 from a kept one. A following layer called the
/// same way casts it back; before other operations use at_border.
template <class Layer, class... Args>
requires std::derived_from<Layer, torch::nn::Module>
auto run_at_border(Layer& layer, const Args&... args) {
  const Borders* borders = Borders::current();
  if (borders == nullptr || !borders->contains(layer)) return layer.forward(args...);
  return borders->run(layer, args...);
}

template <class Impl, class... Args>
auto run_at_border(const torch::nn::ModuleHolder<Impl>& layer, const Args&... args) {
  return run_at_border(*layer.ptr(), args...);
}

template <class... Args>
torch::nn::AnyValue Borders::run_any(torch::nn::AnyModule& layer, const Args&... args) const {
  const auto module = layer.ptr();
  if (auto* inner = module->as<NestedSequentialImpl>()) return run_all(*inner, args...);
  Conversion cast = casts_before(*module);
  std::tuple<std::decay_t<Args>...> inputs{cast(args)...};
  return std::apply([&](auto&... input) { return layer.any_forward(std::move(input)...); }, inputs);
}

template <class... Args>
torch::nn::AnyValue Borders::run_all(torch::nn::SequentialImpl& net, const Args&... args) const {
  check_not_empty(net);
  auto layer = net.begin();
  torch::nn::AnyValue value = run_any(*layer, args...);
  for (++layer; layer != net.end(); ++layer) value = run_any(*layer, value);
  return value;
}

template <class Layer, class... Args>
auto Borders::run(Layer& layer, const Args&... args) const {
  if constexpr (std::is_same_v<Layer, torch::nn::SequentialImpl> ||
                std::is_same_v<Layer, NestedSequentialImpl>) {
    return run_all(layer, args...).template get<torch::Tensor>();
  } else {
    Conversion cast = casts_before(layer);
    std::tuple<std::decay_t<Args>...> inputs{cast(args)...};
    return std::apply([&](const auto&... input) { return layer.forward(input...); }, inputs);
  }
}

}  // namespace vsr::runtime
