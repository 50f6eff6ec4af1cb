// SPDX-License-Identifier: Apache-2.0
#include "launch/show_checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/counted.hpp"
#include "runtime/checkpoint/files.hpp"

namespace vsr::launch {
namespace {

using nlohmann::json;

std::string plain(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string text(const json& value) {
  return value.is_string() ? value.get<std::string>() : plain(value);
}

std::string tensor_lines(const json& tensors, const std::string& kind) {
  std::size_t width = 0;
  for (const json& tensor : tensors)
    width = std::max(width, tensor.at("name").get<std::string>().size());
  std::string lines = fmt::format("{} ({}):\n", kind, tensors.size());
  for (const json& tensor : tensors) {
    lines += fmt::format("  {:<{}}  {} {}", tensor.at("name").get<std::string>(),
                         std::min<std::size_t>(width, 60), text(tensor.at("dtype")),
                         plain(tensor.at("shape")));
    if (tensor.contains("steps"))
      lines += "  " + counted(tensor.at("steps").get<std::int64_t>(), "step");
    lines += '\n';
  }
  return lines;
}

/// "key: value" for each entry, objects one level deeper.
std::string state_lines(const json& state, const std::string& indent) {
  std::string lines;
  for (const auto& [key, value] : state.items()) {
    if (value.is_object())
      lines += indent + key + ":\n" + state_lines(value, indent + "  ");
    else
      lines += fmt::format("{}{}: {}\n", indent, key, text(value));
  }
  return lines;
}

}  // namespace

std::string show_text(const json& facts) {
  std::string lines = fmt::format("{}\n", text(facts.at("folder")));
  const auto add = [&](const std::string& key, const std::string& value) {
    lines += fmt::format("{}: {}\n", key, value);
  };
  add("format", plain(facts.at("format")));
  add("iteration", plain(facts.at("iteration")));
  add("ranks", plain(facts.at("ranks")));
  add("elements", plain(facts.at("elements")));
  std::string arrays;
  for (const json& array : facts.at("arrays")) arrays += (arrays.empty() ? "" : ", ") + text(array);
  add("arrays", arrays);
  add("size", runtime::readable_size(facts.at("size_bytes").get<std::int64_t>()));
  for (const json& file : facts.at("files"))
    lines += fmt::format("  {}  {}  {} elements\n", text(file.at("name")),
                         runtime::readable_size(file.at("size_bytes").get<std::int64_t>()),
                         plain(file.at("elements")));
  lines += tensor_lines(facts.at("parameters"), "parameters");
  lines += tensor_lines(facts.at("buffers"), "buffers");
  if (facts.at("state").is_object()) lines += "state:\n" + state_lines(facts.at("state"), "  ");
  return lines;
}

}  // namespace vsr::launch
