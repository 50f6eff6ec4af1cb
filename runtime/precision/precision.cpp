// SPDX-License-Identifier: Apache-2.0
#include "runtime/precision/precision.hpp"

#include <ATen/autocast_mode.h>

#include <array>
#include <utility>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

constexpr std::array<std::pair<Precision, const char*>, 4> kNames{{{Precision::fp32, "fp32"},
                                                                   {Precision::fp16, "fp16"},
                                                                   {Precision::bf16, "bf16"},
                                                                   {Precision::amp, "amp"}}};

}  // namespace

Precision precision_from_name(const std::string& name) {
  for (const auto& [precision, known] : kNames)
    if (name == known) return precision;
  throw UsageError("precision '" + name + "' is unknown; choose fp32, fp16, bf16 or amp");
}

std::string name_of(Precision precision) {
  for (const auto& [known, name] : kNames)
    if (precision == known) return name;
  throw ArgumentError("precision " + std::to_string(static_cast<int>(precision)) +
                      " is outside the enumeration");
}

at::ScalarType replica_dtype(Precision precision) {
  if (precision == Precision::fp16) return at::kHalf;
  if (precision == Precision::bf16) return at::kBFloat16;
  return at::kFloat;
}

torch::Tensor at_border(const torch::Tensor& x, const torch::Tensor& weight) {
  if (x.scalar_type() == weight.scalar_type()) return x;
  if (at::autocast::is_autocast_enabled(x.device().type())) return x;
  return x.to(weight.scalar_type());
}

AutocastScope::AutocastScope(at::DeviceType device)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      former_dtype_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, at::kHalf);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  at::autocast::decrement_nesting();
  // Inside an autocast scope of the caller LibTorch would keep cast weights until that one ends,
  // and a step in between would go unseen.
  at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device_, former_dtype_);
  at::autocast::set_autocast_enabled(device_, was_enabled_);
}

}  // namespace vsr::runtime
