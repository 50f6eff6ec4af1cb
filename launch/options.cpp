// SPDX-License-Identifier: Apache-2.0
// From the words of a command line to checked options. Boost.Program_options cuts the line into
// options and lays out the help; names, values and their errors are ours, so that a message can
// name the nearest option and say what was expected.
#include "launch/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <map>
#include <set>
#include <sstream>

#include "comm/error.hpp"
#include "launch/option_table.hpp"

namespace vsr::launch {
namespace po = boost::program_options;
namespace {

constexpr const char* kSeeHelp = "--help lists all options";

std::string default_of(const OptionRow& row) {
  if (!row.default_text.empty()) return row.default_text;
  const auto lines = row.get(TrainOptions{});
  return lines.empty() ? std::string() : lines.front();
}

void add_to(po::options_description& description, const OptionRow& row) {
  if (row.value_name.empty()) {
    description.add_options()(row.name.c_str(), row.description.c_str());
    return;
  }
  auto* value = po::value<std::vector<std::string>>()->value_name(row.value_name);
  if (row.several) value->multitoken();
  if (const auto text = default_of(row); !text.empty()) value->default_value({}, text);
  description.add_options()(row.name.c_str(), value, row.description.c_str());
}

[[noreturn]] void unknown_option(const std::string& token) {
  auto name = token.substr(0, token.find('='));
  const auto start = std::min(name.find_first_not_of('-'), name.size());
  const auto nearest = nearest_name(name.substr(start), visible_option_names());
  throw UsageError(nearest.empty()
                       ? fmt::format("unknown option {}; {}", name, kSeeHelp)
                       : fmt::format("unknown option {}; did you mean --{}?", name, nearest));
}

[[noreturn]] void no_value(const std::string& token) {
  const auto* row = find_option(token.substr(std::min(token.find_first_not_of('-'), token.size())));
  throw UsageError(
      fmt::format("{}: got no value, expected {}", token, row ? row->value_name : "one"));
}

[[noreturn]] void syntax_error(const po::invalid_command_line_syntax& e) {
  const auto name = e.get_option_name();
  switch (e.kind()) {
    case po::invalid_syntax::missing_parameter:
    case po::invalid_syntax::empty_adjacent_parameter:
      no_value(name);
    case po::invalid_syntax::extra_parameter:
      throw UsageError(fmt::format("{}: got a value, expected none", name));
    default:
      throw UsageError(fmt::format("{}; {}", e.what(), kSeeHelp));
  }
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// A misspelt option must not pass as the value of the one before it; negative numbers may.
void refuse_options_as_values(const po::option& option) {
  for (std::size_t i = 1; i < option.original_tokens.size(); ++i) {
    const auto& token = option.original_tokens[i];
    if (token.size() < 2 || token[0] != '-' || token[1] == '.' || is_digit(token[1])) continue;
    if (!token.starts_with("--") || find_option(token.substr(2)) == nullptr) unknown_option(token);
    no_value(option.original_tokens.front());
  }
}

struct GivenOption {
  const OptionRow* row;
  std::vector<std::string> values;
};

/// The options of a command line in order, each known and none twice that may not be.
std::vector<GivenOption> cut_into_options(std::span<const std::string> arguments) {
  po::options_description all;
  for (const auto& row : option_table()) add_to(all, row);
  std::vector<std::string> words(arguments.begin(), arguments.end());
  std::replace(words.begin(), words.end(), std::string("-h"), std::string("--help"));
  // Abbreviations are left out on purpose: a later option could change what one means.
  const int style = po::command_line_style::allow_long | po::command_line_style::long_allow_next |
                    po::command_line_style::long_allow_adjacent;
  std::vector<GivenOption> given;
  std::set<std::string> seen;
  try {
    const auto parsed =
        po::command_line_parser(words).options(all).style(style).allow_unregistered().run();
    for (const auto& option : parsed.options) {
      const auto& token =
          option.original_tokens.empty() ? option.string_key : option.original_tokens.front();
      if (option.unregistered || (option.position_key >= 0 && token.starts_with("-")))
        unknown_option(token);
      if (option.position_key >= 0)
        throw UsageError(
            fmt::format("got \"{}\" without an option before it; clips go behind --train", token));
      refuse_options_as_values(option);
      const auto* row = find_option(option.string_key);
      if (!row->repeatable && !seen.insert(row->name).second)
        throw UsageError(fmt::format("--{} is given twice; keep one", row->name));
      given.push_back({row, option.value});
    }
  } catch (const po::invalid_command_line_syntax& e) {
    syntax_error(e);
  } catch (const po::error& e) {
    throw UsageError(fmt::format("{}; {}", e.what(), kSeeHelp));
  }
  return given;
}

/// Read the file into `options`, but for what the command line gives.
void apply_file(const std::string& path, const std::set<std::string>& on_command_line,
                TrainOptions& options) {
  TrainOptions overridden;
  std::map<std::string, int> lines;
  for (const auto& entry : read_config_file(path)) {
    const auto where = fmt::format("{}:{}", path, entry.line);
    const auto* row = find_option(entry.key);
    if (row == nullptr) {
      const auto nearest = nearest_name(entry.key, visible_option_names());
      throw ConfigurationError(fmt::format(
          "{}: unknown key {}; {}", where, entry.key,
          nearest.empty() ? std::string(kSeeHelp) : fmt::format("did you mean {}?", nearest)));
    }
    if (!row->in_file)
      throw ConfigurationError(
          fmt::format("{}: {} belongs on the command line; remove the line", where, entry.key));
    const auto [first, fresh] = lines.emplace(entry.key, entry.line);
    if (!fresh && !row->repeatable)
      throw ConfigurationError(fmt::format("{}: {} is given twice, first in line {}; keep one",
                                           where, entry.key, first->second));
    try {
      row->set(on_command_line.count(entry.key) ? overridden : options, {&entry.value, 1});
    } catch (const BadValue& bad) {
      throw ConfigurationError(
          fmt::format("{}: {}: got \"{}\", expected {}", where, entry.key, bad.got, bad.expected));
    }
  }
}

void apply(const GivenOption& given, TrainOptions& options) {
  try {
    given.row->set(options, given.values);
  } catch (const BadValue& bad) {
    throw UsageError(
        fmt::format("--{}: got \"{}\", expected {}", given.row->name, bad.got, bad.expected));
  }
}

std::vector<std::string> words_of(int argc, const char* const* argv) {
  return argc > 1 ? std::vector<std::string>(argv + 1, argv + argc) : std::vector<std::string>();
}

}  // namespace

TrainOptions parse_train_options(std::span<const std::string> arguments) {
  const auto given = cut_into_options(arguments);
  TrainOptions options;
  std::set<std::string> names;
  for (const auto& option : given) {
    names.insert(option.row->name);
    if (option.row->name == "help" || option.row->name == "version" || option.row->name == "config")
      apply(option, options);
  }
  if (options.help || options.version) return options;
  if (!options.config.empty()) apply_file(options.config, names, options);
  for (const auto& option : given) apply(option, options);
  if (options.num_frame == 0) options.num_frame = options.model == "espcn" ? 1 : 3;
  if (options.out.empty()) options.out = "runs/" + options.model;
  check_options(options);
  return options;
}

TrainOptions parse_train_options(int argc, const char* const* argv) {
  return parse_train_options(words_of(argc, argv));
}

std::string train_help_text(int width) {
  static constexpr std::pair<OptionGroup, const char*> kGroups[] = {
      {OptionGroup::data, "Data"},
      {OptionGroup::network, "Network"},
      {OptionGroup::training, "Training"},
      {OptionGroup::communication, "Precision and communication"},
      {OptionGroup::output, "Checkpoints and output"},
      {OptionGroup::other, "Other"}};
  const auto columns = static_cast<unsigned>(std::max(width, 60));
  po::options_description all(columns, columns / 2);
  for (const auto& [group, caption] : kGroups) {
    po::options_description part(caption, columns, columns / 2);
    for (const auto& row : option_table())
      if (row.group == group) add_to(part, row);
    all.add(part);
  }
  std::ostringstream text;
  text << "Train a video super-resolution network on one or many ranks.\n\n"
          "  vsr_dist_train --train clip.mp4\n"
          "  mpirun -np 4 vsr_dist_train --train clips/ --resume auto\n\n"
          "(=...) is the default.\n"
       << all;
  return text.str();
}

std::string write_config(const TrainOptions& options) {
  std::string text = "# Settings of vsr_dist_train; read back with --config.\n";
  for (const auto& row : option_table()) {
    if (!row.in_file) continue;
    for (const auto& value : row.get(options))
      text += fmt::format("{} = {}\n", row.name, quote_config_value(value));
  }
  return text;
}

}  // namespace vsr::launch
