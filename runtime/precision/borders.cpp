// SPDX-License-Identifier: Apache-2.0
// Which modules are kept is decided once, when a network is wrapped, and with it whether every cast
// this needs will be made: a mixture of dtypes would otherwise show in the middle of a forward
// pass, in words that do not name the layer.
#include "runtime/precision/borders.hpp"

#include <algorithm>
#include <typeinfo>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

thread_local const Borders* current_borders = nullptr;

/// Who calls a module, as far as casts go.
enum class Caller {
  casts,      // the wrapper or a Sequential: every call is cast
  draws,      // a network that casts where it finds fit, also between parameters of its own
  calls_only  // a class that knows nothing of borders
};

/// `path` is `root` or lies below it.
bool is_within(const std::string& path, const std::string& root) {
  return path.compare(0, root.size(), root) == 0 &&
         (path.size() == root.size() || path[root.size()] == '.');
}

void check_names(const torch::nn::Module& network, const KeepInFp32& keep) {
  const auto known = network.named_modules().keys();
  for (const std::string& name : keep.names) {
    if (!name.empty() && std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string list;
    for (const std::string& path : known)
      if (!path.empty()) list += (list.empty() ? "" : ", ") + path;
    throw ConfigurationError("no module '" + name + "' to keep in FP32; this network has " + list);
  }
}

bool is_named_or_chosen(const std::string& path, const torch::nn::Module& module,
                        const KeepInFp32& keep) {
  return (keep.also && keep.also(path, module)) ||
         std::any_of(keep.names.begin(), keep.names.end(),
                     [&](const auto& name) { return is_within(path, name); });
}

bool is_to_be_kept(const std::string& path, const torch::nn::Module& module,
                   const KeepInFp32& keep) {
  return (keep.normalisation && is_normalisation(module)) || (keep.softmax && is_softmax(module)) ||
         (keep.losses && is_loss(module)) || is_named_or_chosen(path, module, keep);
}

/// LibTorch's kernels for this module read FP32 parameters beside reduced input.
bool takes_reduced_input(const torch::nn::Module& module) {
  using namespace torch::nn;
  if (!is_normalisation(module) || module.as<LocalResponseNorm>() || module.as<CrossMapLRN2d>())
    return false;
  if (module.as<LayerNorm>() == nullptr && module.as<GroupNorm>() == nullptr) return true;
  const auto parameters = module.parameters();
  return parameters.empty() || parameters.front().device().is_cpu();
}

/// A class derived from Sequential has a forward of its own, which may do anything.
bool is_plain_sequence(const torch::nn::Module& module) {
  return typeid(module) == typeid(torch::nn::SequentialImpl) ||
         typeid(module) == typeid(NestedSequentialImpl);
}

[[noreturn]] void refuse_unreached(const std::string& path, const torch::nn::Module& module,
                                   const std::string& owner) {
  const std::string group = is_normalisation(module) ? "normalisation"
                            : is_softmax(module)     ? "softmax"
                            : is_loss(module)        ? "losses"
                                                     : "";
  throw ConfigurationError(
      "module '" + path + "' (" + module.name() + ") is to be kept in FP32, but " + owner +
      " calls it without a cast, with reduced values; derive that class from DrawsBorders and "
      "call the layer through run_at_border, or make it part of a Sequential, or do not keep it" +
      (group.empty() ? "" : " (KeepInFp32::" + group + " = false, or its name in no list)"));
}

std::string below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

}  // namespace

/// One walk over the modules as they call each other.
struct Borders::Tree {
  const Borders& borders;
  const KeepInFp32& keep;

  void check(const std::string& path, const torch::nn::Module& module, Caller caller,
             const std::string& owner) const {
    if (borders.is_kept(module)) return check_kept(path, module, caller, owner);
    const bool draws = caller == Caller::draws || dynamic_cast<const DrawsBorders*>(&module);
    if (!draws) check_not_shared(path, module);
    const Caller next = draws                                                  ? Caller::draws
                        : caller == Caller::casts && is_plain_sequence(module) ? Caller::casts
                                                                               : Caller::calls_only;
    const std::string me =
        (path.empty() ? "the network" : "'" + path + "'") + " (" + module.name() + ")";
    for (const auto& child : module.named_children())
      check(below(path, child.key()), *child.value(), next, me);
  }

  void check_kept(const std::string& path, const torch::nn::Module& module, Caller caller,
                  const std::string& owner) const {
    if (caller != Caller::calls_only || takes_reduced_input(module)) return;
    // Softmax of FP16 values is computed in FP32 and lies in [0, 1]: only its result is rounded.
    if (is_softmax(module) && !is_named_or_chosen(path, module, keep)) return;
    refuse_unreached(path, module, owner);
  }

  void check_not_shared(const std::string& path, const torch::nn::Module& module) const {
    for (const auto& item : module.named_parameters(/*recurse=*/false))
      if (borders.is_kept(item.value()))
        throw ConfigurationError("parameter '" + below(path, item.key()) +
                                 "' is shared with a module that is kept in FP32, while '" + path +
                                 "' (" + module.name() +
                                 ") is reduced; keep both in FP32 or neither");
  }
};

Borders::Borders(const torch::nn::Module& network, at::ScalarType reduced, const KeepInFp32& keep,
                 bool draws_borders)
    : reduced_(reduced) {
  check_names(network, keep);
  const auto mark = [this](const torch::nn::Module& module) { kept_[&module] = true; };
  kept_.emplace(&network, false);
  for (const auto& item : network.named_modules()) {
    const torch::nn::Module& module = *item.value();
    kept_.emplace(&module, false);
    if (!is_to_be_kept(item.key(), module, keep)) continue;
    mark(module);
    for (const auto& part : module.modules(/*include_self=*/false)) mark(*part);
    for (const auto& tensor : module.parameters())
      kept_tensors_.insert(tensor.unsafeGetTensorImpl());
    for (const auto& tensor : module.buffers()) kept_tensors_.insert(tensor.unsafeGetTensorImpl());
  }
  if (reduced_ == at::kFloat) return;
  Tree{*this, keep}.check("", network, draws_borders ? Caller::draws : Caller::casts, "");
}

Conversion Borders::casts_before(const torch::nn::Module& module) const {
  return is_kept(module) ? Conversion(reduced_, at::kFloat) : Conversion(at::kFloat, reduced_);
}

void Borders::check_not_empty(const torch::nn::SequentialImpl& net) {
  VSR_CHECK(!net.is_empty(), "a torch::nn::Sequential without modules has no forward");
}

torch::Tensor NestedSequentialImpl::forward(const torch::Tensor& x) {
  const Borders* borders = Borders::current();
  if (borders == nullptr || !borders->contains(*this)) return SequentialImpl::forward(x);
  return borders->run(*this, x);
}

std::shared_ptr<torch::nn::Module> NestedSequentialImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<NestedSequentialImpl>();
  for (const torch::nn::AnyModule& module : *this) copy->push_back(module.clone(device));
  return copy;
}

const Borders* Borders::current() noexcept {
  return current_borders;
}

Borders::Scope::Scope(const Borders& borders) noexcept
    : former_(std::exchange(current_borders, &borders)) {}

Borders::Scope::~Scope() {
  current_borders = former_;
}

}  // namespace vsr::runtime
