// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/match_parameters.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

constexpr std::size_t kLinesShown = 10;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

/// One line for each difference between two lists of records, in the order of `expected`.
/// `describe` gives what has to be equal besides the name; `place` is what `stored` comes from.
template <typename Record, typename Describe>
std::vector<std::string> differences(const std::vector<Record>& expected,
                                     const std::vector<Record>& stored, Describe describe,
                                     const std::string& place = "checkpoint") {
  std::vector<std::string> lines;
  std::map<std::string, const Record*> left;
  for (const Record& record : stored) left[record.name] = &record;
  for (const Record& record : expected) {
    const auto found = left.find(record.name);
    if (found == left.end()) {
      lines.push_back("missing in the " + place + ": " + record.name + " " + describe(record));
      continue;
    }
    if (describe(record) != describe(*found->second))
      lines.push_back(record.name + " is " + describe(*found->second) + " in the " + place +
                      ", the network has " + describe(record));
    left.erase(found);
  }
  for (const Record& record : stored)
    if (left.count(record.name) != 0)
      lines.push_back("only in the " + place + ": " + record.name + " " + describe(record));
  return lines;
}

void refuse(const std::string& head, const std::string& kind, const std::string& hint,
            const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  std::string message = head + ": " + std::to_string(lines.size()) + " " + kind +
                        (lines.size() == 1 ? " differs" : "s differ");
  for (std::size_t i = 0; i < std::min(lines.size(), kLinesShown); ++i)
    message += "\n  " + lines[i];
  if (lines.size() > kLinesShown)
    message += "\n  and " + std::to_string(lines.size() - kLinesShown) + " more";
  throw ConfigurationError(message + "\n" + hint);
}

void refuse(const std::string& whole, const std::string& kind,
            const std::vector<std::string>& lines) {
  refuse("checkpoint of another " + whole, kind,
         "use the options of the run that wrote it, or another output folder", lines);
}

}  // namespace

void match_parameters(const std::vector<ParameterRecord>& expected,
                      const std::vector<ParameterRecord>& stored) {
  std::vector<std::string> lines = differences(
      expected, stored, [](const ParameterRecord& record) { return shape_text(record.shape); });
  if (lines.empty())
    for (std::size_t i = 0; i < expected.size(); ++i)
      if (expected[i].name != stored[i].name)
        lines.push_back("parameter " + std::to_string(i) + " is " + stored[i].name +
                        " in the checkpoint, the network has " + expected[i].name +
                        ": same parameters in another order");
  refuse("network", "parameter", lines);
}

void match_buffers(const std::vector<BufferRecord>& expected,
                   const std::vector<BufferRecord>& stored) {
  refuse("network", "buffer", differences(expected, stored, [](const BufferRecord& record) {
           return record.dtype + " " + shape_text(record.shape);
         }));
}

void match_weights(const std::vector<TensorEntry>& expected, const std::vector<TensorEntry>& stored,
                   const std::string& file) {
  refuse("'" + file + "' holds the weights of another network", "tensor",
         "give with --like a checkpoint of the same network",
         differences(
             expected, stored, [](const TensorEntry& tensor) { return shape_text(tensor.shape); },
             "file"));
}

void match_arrays(const std::vector<std::string>& expected, const ShardData& stored) {
  std::vector<std::string> lines;
  for (const std::string& name : expected)
    if (!stored.arrays.contains(name)) lines.push_back("missing in the checkpoint: " + name);
  for (const auto& [name, values] : stored.arrays)
    if (std::find(expected.begin(), expected.end(), name) == expected.end())
      lines.push_back("only in the checkpoint: " + name);
  refuse("optimizer", "array", lines);
}

}  // namespace vsr::runtime
