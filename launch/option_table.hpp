// SPDX-License-Identifier: Apache-2.0
// One row per option of vsr_dist_train, read by the parser, the help, the config file's reader and
// its writer, so that the four cannot disagree. Internal to launch.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launch/options.hpp"

namespace vsr::launch {

/// Thrown by a row's `set`; the parser adds where the value came from.
struct BadValue {
  std::string got;
  std::string expected;
};

enum class OptionGroup { data, network, training, communication, output, other, hidden };

struct OptionRow {
  std::string name;
  OptionGroup group;
  std::string value_name;    ///< empty: a flag without a value
  std::string description;   ///< with the unit
  std::string default_text;  ///< empty: the text of `get` on default options
  bool repeatable = false;   ///< takes several values, and may be given several times
  bool several = false;      ///< takes several values
  bool in_file = true;       ///< allowed in a config file
  std::function<void(TrainOptions&, std::span<const std::string>)> set{};
  /// One text per line of the config file; none: nothing to write.
  std::function<std::vector<std::string>(const TrainOptions&)> get{};
};

const std::vector<OptionRow>& option_table();

/// The row called `name`, or null.
const OptionRow* find_option(std::string_view name);

/// Names of the options that are not hidden.
std::vector<std::string> visible_option_names();

/// @throws UsageError, ConfigurationError: see parse_train_options
void check_options(const TrainOptions& options);

/// One line of a config file.
struct ConfigEntry {
  std::string key;
  std::string value;
  int line = 0;
};

/// @throws ConfigurationError naming file and line
std::vector<ConfigEntry> read_config_file(const std::string& path);

/// A value as `read_config_file` reads it back, quoted where needed.
std::string quote_config_value(const std::string& value);

}  // namespace vsr::launch
