// SPDX-License-Identifier: Apache-2.0
// The command lines of `vsr COMMAND`: options and named places, with the same messages for all.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

namespace vsr::launch {

/// A command: the text above its help, its options, the names of its positional arguments.
struct Command {
  std::string usage;
  boost::program_options::options_description options;
  std::vector<std::string> positional;
};

/// @throws UsageError naming the argument that is unknown, missing or no value of its option
boost::program_options::variables_map parse(const Command& command,
                                            const std::vector<std::string>& arguments);

/// Print the help where --help was given. @returns whether it was
bool print_help(const Command& command, const boost::program_options::variables_map& values);

}  // namespace vsr::launch
