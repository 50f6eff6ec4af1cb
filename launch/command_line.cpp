// SPDX-License-Identifier: Apache-2.0
#include "launch/command_line.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <sstream>

#include "comm/error.hpp"
#include "launch/options.hpp"

namespace vsr::launch {

namespace po = boost::program_options;

po::variables_map parse(const Command& command, const std::vector<std::string>& arguments) {
  po::options_description all;
  all.add(command.options);
  po::positional_options_description places;
  for (const std::string& name : command.positional) {
    all.add_options()(name.c_str(), po::value<std::string>());
    places.add(name.c_str(), 1);
  }
  po::variables_map values;
  try {
    const int style =
        po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    po::store(po::command_line_parser(arguments).options(all).positional(places).style(style).run(),
              values);
  } catch (const po::unknown_option& error) {
    std::vector<std::string> names;
    for (const auto& option : command.options.options()) names.push_back(option->long_name());
    std::string name = error.get_option_name();
    name.erase(0, name.find_first_not_of('-'));
    const std::string near = nearest_name(name, names);
    throw UsageError(fmt::format("unknown option --{}{}; see {} --help", name,
                                 near.empty() ? "" : "; did you mean --" + near + "?",
                                 command.usage));
  } catch (const po::error& error) {
    throw UsageError(std::string(error.what()) + "; see " + command.usage + " --help");
  }
  if (values.count("help") > 0) return values;
  for (const std::string& name : command.positional)
    if (values.count(name) == 0)
      throw UsageError(fmt::format("{} is missing: {}", name, command.usage));
  return values;
}

bool print_help(const Command& command, const po::variables_map& values) {
  if (values.count("help") == 0) return false;
  std::ostringstream text;
  text << command.usage << "\n\n" << command.options;
  std::fputs(text.str().c_str(), stdout);
  return true;
}

}  // namespace vsr::launch
