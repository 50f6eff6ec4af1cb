// SPDX-License-Identifier: Apache-2.0
// Config files: `key = value` lines. Boost.Program_options can read such files, but cuts values at
// any '#', knows no quotes and no line numbers; paths need the first two, people the third.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "comm/error.hpp"
#include "launch/option_table.hpp"

namespace vsr::launch {
namespace {

constexpr std::string_view kBlanks = " \t\r";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some editors begin UTF-8 with it

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kBlanks) - first + 1));
}

[[noreturn]] void fail(const std::string& path, int line, const std::string& text) {
  throw ConfigurationError(fmt::format("{}:{}: {}", path, line, text));
}

std::string unquoted(const std::string& path, int line, const std::string& text) {
  std::string value;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      const auto rest = trimmed(std::string_view(text).substr(i + 1));
      if (!rest.empty() && rest[0] != '#' && rest[0] != ';')
        fail(path, line, fmt::format("got {} after the closing quote, expected nothing", rest));
      return value;
    }
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      value += text[i] == 'n' ? '\n' : text[i] == 'r' ? '\r' : text[i];
    } else {
      value += text[i];
    }
  }
  fail(path, line, fmt::format("got {}, expected a closing quote", text));
}

std::string without_comment(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool mark = text[i] == '#' || text[i] == ';';
    if (mark && (i == 0 || kBlanks.find(text[i - 1]) != std::string_view::npos))
      return trimmed(std::string_view(text).substr(0, i));
  }
  return text;
}

}  // namespace

std::vector<ConfigEntry> read_config_file(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  // A folder opens, but cannot be read: peek tells both failures.
  if (!file || (file.peek(), file.bad()))
    throw ConfigurationError(fmt::format("--config: cannot read {}: {}; give an existing file",
                                         path, std::strerror(errno)));
  std::vector<ConfigEntry> entries;
  for (int line = 1; std::getline(file, text); ++line) {
    if (line == 1 && text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
    const auto content = trimmed(text);
    if (content.empty() || content[0] == '#' || content[0] == ';') continue;
    if (content[0] == '[')
      fail(path, line, fmt::format("got {}; sections are not used here, remove the line", content));
    const auto equals = content.find('=');
    if (equals == std::string::npos || equals == 0)
      fail(path, line, fmt::format("got \"{}\", expected key = value", content));
    auto key = trimmed(std::string_view(content).substr(0, equals));
    auto value = trimmed(std::string_view(content).substr(equals + 1));
    value =
        !value.empty() && value[0] == '"' ? unquoted(path, line, value) : without_comment(value);
    entries.push_back({std::move(key), std::move(value), line});
  }
  return entries;
}

std::string quote_config_value(const std::string& value) {
  const bool plain = !value.empty() && value == trimmed(value) &&
                     value.find_first_of("#;\"\n\r") == std::string::npos;
  if (plain) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n' || c == '\r')
      quoted += c == '\n' ? "\\n" : "\\r";
    else
      quoted += c;
  }
  return quoted + '"';
}

}  // namespace vsr::launch
