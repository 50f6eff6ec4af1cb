// SPDX-License-Identifier: Apache-2.0
// Strict conversions between the text of an option and its value. Internal to launch.
#pragma once

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "launch/option_table.hpp"

namespace vsr::launch {

/// Enum value and spelling, in the order of the help.
template <class Enum, std::size_t N>
using Names = std::array<std::pair<Enum, std::string_view>, N>;

inline constexpr Names<Precision, 4> kPrecisions{{{Precision::fp32, "fp32"},
                                                  {Precision::fp16, "fp16"},
                                                  {Precision::bf16, "bf16"},
                                                  {Precision::amp, "amp"}}};
inline constexpr Names<Reduction, 3> kReductions{
    {{Reduction::exact, "exact"}, {Reduction::allreduce, "allreduce"}, {Reduction::fast, "fast"}}};
inline constexpr Names<Backend, 3> kBackends{
    {{Backend::automatic, "auto"}, {Backend::mpi, "mpi"}, {Backend::nccl, "nccl"}}};
inline constexpr Names<Overlap, 3> kOverlaps{
    {{Overlap::automatic, "auto"}, {Overlap::on, "on"}, {Overlap::off, "off"}}};
inline constexpr Names<OptimizerKind, 4> kOptimizers{{{OptimizerKind::adam, "adam"},
                                                      {OptimizerKind::adamw, "adamw"},
                                                      {OptimizerKind::sgd, "sgd"},
                                                      {OptimizerKind::lamb, "lamb"}}};
inline constexpr Names<Scheduler, 6> kSchedulers{{{Scheduler::constant, "constant"},
                                                  {Scheduler::cosine, "cosine"},
                                                  {Scheduler::multistep, "multistep"},
                                                  {Scheduler::cosine_restart, "cosine_restart"},
                                                  {Scheduler::triangular, "triangular"},
                                                  {Scheduler::one_cycle, "one_cycle"}}};
inline constexpr Names<AnnealStrategy, 2> kAnnealStrategies{
    {{AnnealStrategy::cos, "cos"}, {AnnealStrategy::linear, "linear"}}};

/// `text` as a whole number of [low, high], all of it.
template <std::integral T>
T whole_number(const std::string& text, T low, T high = std::numeric_limits<T>::max()) {
  T value{};
  const auto* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || value < low || value > high) {
    const bool open = high == std::numeric_limits<T>::max();
    throw BadValue{text, open ? fmt::format("a whole number of at least {}", low)
                              : fmt::format("a whole number from {} to {}", low, high)};
  }
  return value;
}

/// `text` as a finite number for which `accepts` holds.
template <class Accepts>
double real_number(const std::string& text, const char* expected, Accepts accepts) {
  double value = 0;
  const auto* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || !std::isfinite(value) || !accepts(value))
    throw BadValue{text, expected};
  return value;
}

/// The shortest text that reads back to `value`; "2e-4" rather than "0.0002".
std::string number_text(double value);

/// "a, b or c".
std::string alternatives(const std::vector<std::string>& names);

/// `expected` is made from `names`; a near miss is named.
[[noreturn]] void throw_bad_choice(const std::string& text, const std::vector<std::string>& names);

template <class Enum, std::size_t N>
Enum choice(const std::string& text, const Names<Enum, N>& names) {
  std::vector<std::string> spellings;
  for (const auto& [value, name] : names) {
    if (text == name) return value;
    spellings.emplace_back(name);
  }
  throw_bad_choice(text, spellings);
}

template <class Enum, std::size_t N>
std::string_view spelling(Enum value, const Names<Enum, N>& names) {
  for (const auto& [candidate, name] : names)
    if (candidate == value) return name;
  return "?";
}

}  // namespace vsr::launch
