// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

#include "comm/error.hpp"
#include "runtime/checkpoint/inspect.hpp"

namespace vsr::runtime {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return nlohmann::json(shape).dump();
}

std::string number_text(double value) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

/// "conv.weight: A, in the other B" for each key whose values differ, the whole way down.
void compare_json(const nlohmann::json& a, const nlohmann::json& b, const std::string& key,
                  std::vector<std::string>& lines) {
  if (a == b) return;
  if (!a.is_object() || !b.is_object()) {
    lines.push_back(key + ": " + a.dump() + ", in the other " + b.dump());
    return;
  }
  std::set<std::string> names;
  for (const auto& [name, value] : a.items()) names.insert(name);
  for (const auto& [name, value] : b.items()) names.insert(name);
  for (const std::string& name : names) {
    const std::string deeper = key + "." + name;
    if (!a.contains(name))
      lines.push_back(deeper + ": only in the other");
    else if (!b.contains(name))
      lines.push_back(deeper + ": missing in the other");
    else
      compare_json(a.at(name), b.at(name), deeper, lines);
  }
}

/// Lines for names that only one of two lists of records has, and for those where `describe`
/// differs. @returns the names in both with equal descriptions
template <typename Record, typename Describe>
std::set<std::string> compare_records(const std::vector<Record>& a, const std::vector<Record>& b,
                                      const std::string& kind, Describe describe,
                                      std::vector<std::string>& lines) {
  std::map<std::string, const Record*> left;
  for (const Record& record : b) left[record.name] = &record;
  std::set<std::string> equal;
  for (const Record& record : a) {
    const auto found = left.find(record.name);
    if (found == left.end()) {
      lines.push_back(kind + " " + record.name + ": missing in the other");
      continue;
    }
    if (describe(record) == describe(*found->second))
      equal.insert(record.name);
    else
      lines.push_back(kind + " " + record.name + ": " + describe(record) + ", in the other " +
                      describe(*found->second));
    left.erase(found);
  }
  for (const Record& record : b)
    if (left.contains(record.name))
      lines.push_back(kind + " " + record.name + ": only in the other");
  return equal;
}

/// How the values of one parameter differ; empty where all bits are equal.
std::string value_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0.0;
  std::size_t place = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i])) continue;
    if (count++ == 0) place = i;
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    // inf against inf of another sign, or a NaN: no number says how far apart they are.
    if (!(difference <= largest)) {
      largest = std::isnan(difference) ? HUGE_VAL : difference;
      place = i;
    }
  }
  if (count == 0) return "";
  return std::to_string(count) + " of " + std::to_string(a.size()) + " values differ, at most by " +
         number_text(largest) + " (element " + std::to_string(place) + ")";
}

void compare_array(const CheckpointHeader& a, const CheckpointHeader& b, const std::string& array,
                   const std::set<std::string>& names, Comparison& result) {
  const CheckpointHeader only_a = with_array_only(a, array);
  const CheckpointHeader only_b = with_array_only(b, array);
  std::map<std::string, const ParameterRecord*> in_b;
  for (const ParameterRecord& parameter : b.snapshot.parameters) in_b[parameter.name] = &parameter;
  std::int64_t equal = 0;
  for (const ParameterRecord& parameter : a.snapshot.parameters) {
    if (!names.contains(parameter.name)) continue;
    const ParameterRecord& other = *in_b.at(parameter.name);
    if (parameter.numel != other.numel) continue;
    const std::string difference = value_difference(read_parameter(only_a, array, parameter),
                                                    read_parameter(only_b, array, other));
    if (difference.empty())
      ++equal;
    else
      result.differences.push_back(array + " " + parameter.name + ": " + difference);
  }
  result.equal.push_back(array + ": " + std::to_string(equal) + " of " +
                         std::to_string(names.size()) + " parameters have the same bits");
}

}  // namespace

Comparison compare_checkpoints(const CheckpointHeader& a, const CheckpointHeader& b) {
  Comparison result;
  std::vector<std::string>& lines = result.differences;
  const Snapshot& first = a.snapshot;
  const Snapshot& second = b.snapshot;
  if (first.iteration != second.iteration)
    lines.push_back("iteration: " + std::to_string(first.iteration) + ", in the other " +
                    std::to_string(second.iteration));
  const std::set<std::string> names = compare_records(
      first.parameters, second.parameters, "parameter",
      [](const ParameterRecord& record) { return shape_text(record.shape); }, lines);
  compare_records(
      first.parameters, second.parameters, "counters of",
      [](const ParameterRecord& record) {
        return record.dtype + ", " + std::to_string(record.steps) + " steps, " +
               nlohmann::json(record.extra).dump();
      },
      lines);
  compare_records(
      first.buffers, second.buffers, "buffer",
      [](const BufferRecord& record) { return record.dtype + " " + shape_text(record.shape); },
      lines);
  for (const BufferRecord& buffer : first.buffers)
    for (const BufferRecord& other : second.buffers)
      if (buffer.name == other.name && buffer.bytes.size() == other.bytes.size() &&
          buffer.bytes != other.bytes)
        lines.push_back("buffer " + buffer.name + ": values differ");
  compare_json(first.state, second.state, "state", lines);
  for (const auto& [array, values] : first.shard.arrays) {
    if (second.shard.arrays.contains(array))
      compare_array(a, b, array, names, result);
    else
      lines.push_back("array " + array + ": missing in the other");
  }
  for (const auto& [array, values] : second.shard.arrays)
    if (!first.shard.arrays.contains(array))
      lines.push_back("array " + array + ": only in the other");
  return result;
}

}  // namespace vsr::runtime
