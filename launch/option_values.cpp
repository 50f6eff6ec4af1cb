// SPDX-License-Identifier: Apache-2.0
// Spellings of values: those of the enums, of numbers, and of what a wrong one should have been.
#include "launch/option_values.hpp"

namespace vsr::launch {

std::string number_text(double value) {
  std::array<char, 64> buffer{};
  const bool tiny = value != 0 && std::abs(value) < 1e-3;
  const auto format = tiny ? std::chars_format::scientific : std::chars_format::general;
  const auto result =
      tiny ? std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format)
           : std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), result.ptr);
  if (const auto zero = text.find("e-0"); zero != std::string::npos) text.erase(zero + 2, 1);
  return text;
}

std::string alternatives(const std::vector<std::string>& names) {
  std::string text = names.front();
  for (std::size_t i = 1; i < names.size(); ++i)
    text += fmt::format("{}{}", i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

void throw_bad_choice(const std::string& text, const std::vector<std::string>& names) {
  const std::string expected = alternatives(names);
  const auto nearest = nearest_name(text, names);
  throw BadValue{text, nearest.empty() ? expected : expected + "; did you mean " + nearest + "?"};
}

std::string_view to_string(Precision value) {
  return spelling(value, kPrecisions);
}
std::string_view to_string(Reduction value) {
  return spelling(value, kReductions);
}
std::string_view to_string(Backend value) {
  return spelling(value, kBackends);
}
std::string_view to_string(Overlap value) {
  return spelling(value, kOverlaps);
}
std::string_view to_string(OptimizerKind value) {
  return spelling(value, kOptimizers);
}
std::string_view to_string(Scheduler value) {
  return spelling(value, kSchedulers);
}
std::string_view to_string(AnnealStrategy value) {
  return spelling(value, kAnnealStrategies);
}

std::string to_string(const Resume& value) {
  switch (value.mode) {
    case ResumeMode::never:
      return "never";
    case ResumeMode::automatic:
      return "auto";
    case ResumeMode::must:
      return "must";
    case ResumeMode::path:
      break;
  }
  return value.path;
}

std::string to_string(const LossScale& value) {
  return value.dynamic ? "dynamic" : number_text(value.value);
}

}  // namespace vsr::launch
