// SPDX-License-Identifier: Apache-2.0
// How a row of the option table is made from a member of TrainOptions, so that each option is one
// statement. Internal to launch.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launch/option_values.hpp"

namespace vsr::launch {

using Values = std::span<const std::string>;
using Lines = std::vector<std::string>;

inline bool positive(double v) {
  return v > 0;
}
inline bool not_negative(double v) {
  return v >= 0;
}

/// The values with blanks between them.
inline std::string joined(Values values) {
  std::string text;
  for (const auto& value : values) text += (text.empty() ? "" : " ") + value;
  return text;
}

/// One value.
inline OptionRow row(OptionGroup group, std::string name, std::string value_name,
                     std::string description,
                     std::function<void(TrainOptions&, const std::string&)> set,
                     std::function<std::string(const TrainOptions&)> get,
                     std::string default_text = "") {
  OptionRow r{std::move(name), group, std::move(value_name), std::move(description),
              std::move(default_text)};
  r.set = [set = std::move(set)](TrainOptions& o, Values values) { set(o, values[0]); };
  r.get = [get = std::move(get)](const TrainOptions& o) { return Lines{get(o)}; };
  return r;
}

/// A flag: no value on the command line, true or false in a file, written only when set.
inline OptionRow flag(OptionGroup group, std::string name, std::string description, bool in_file,
                      bool TrainOptions::*member, bool when_given) {
  OptionRow r{std::move(name), group, "", std::move(description), ""};
  r.in_file = in_file;
  r.set = [=](TrainOptions& o, Values values) {
    const auto text = values.empty() ? std::string("true") : values[0];
    if (text != "true" && text != "false") throw BadValue{text, "true or false"};
    o.*member = text == "true" ? when_given : !when_given;
  };
  r.get = [=](const TrainOptions& o) {
    return in_file && o.*member == when_given ? Lines{"true"} : Lines{};
  };
  return r;
}

/// A whole number kept in `member`.
template <class T>
OptionRow whole(OptionGroup group, std::string name, std::string value_name,
                std::string description, T TrainOptions::*member, T low,
                T high = std::numeric_limits<T>::max(), std::string default_text = "") {
  return row(
      group, std::move(name), std::move(value_name), std::move(description),
      [=](TrainOptions& o, const std::string& v) { o.*member = whole_number<T>(v, low, high); },
      [=](const TrainOptions& o) { return std::to_string(o.*member); }, std::move(default_text));
}

/// A number kept in `member`.
inline OptionRow real(OptionGroup group, std::string name, std::string description,
                      double TrainOptions::*member, const char* expected, bool (*accepts)(double)) {
  return row(
      group, std::move(name), "NUMBER", std::move(description),
      [=](TrainOptions& o, const std::string& v) { o.*member = real_number(v, expected, accepts); },
      [=](const TrainOptions& o) { return number_text(o.*member); });
}

/// One of the spellings of an enum.
template <class Enum, std::size_t N>
OptionRow choices(OptionGroup group, std::string name, std::string description,
                  Enum TrainOptions::*member, const Names<Enum, N>& names) {
  std::string value_name;
  for (const auto& entry : names)
    value_name += fmt::format("{}{}", value_name.empty() ? "" : "|", entry.second);
  return row(
      group, std::move(name), std::move(value_name), std::move(description),
      [=](TrainOptions& o, const std::string& v) { o.*member = choice(v, names); },
      [=](const TrainOptions& o) { return std::string(spelling(o.*member, names)); });
}

/// One value that may be left out: then it is not written, and `default_text` says what counts.
template <class T>
OptionRow optional_row(OptionGroup group, std::string name, std::string value_name,
                       std::string description, std::optional<T> TrainOptions::*member,
                       std::function<T(const std::string&)> read,
                       std::function<std::string(const T&)> write, std::string default_text) {
  OptionRow r{std::move(name), group, std::move(value_name), std::move(description),
              std::move(default_text)};
  r.set = [=](TrainOptions& o, Values values) { o.*member = read(values[0]); };
  r.get = [=](const TrainOptions& o) { return o.*member ? Lines{write(*(o.*member))} : Lines{}; };
  return r;
}

/// A whole number that may be left out.
template <class T>
OptionRow whole(OptionGroup group, std::string name, std::string value_name,
                std::string description, std::optional<T> TrainOptions::*member, T low,
                std::string default_text = "") {
  return optional_row<T>(
      group, std::move(name), std::move(value_name), std::move(description), member,
      [=](const std::string& v) { return whole_number<T>(v, low); },
      [](const T& v) { return std::to_string(v); }, std::move(default_text));
}

/// A number that may be left out.
inline OptionRow real(OptionGroup group, std::string name, std::string description,
                      std::optional<double> TrainOptions::*member, const char* expected,
                      bool (*accepts)(double), std::string default_text) {
  return optional_row<double>(
      group, std::move(name), "NUMBER", std::move(description), member,
      [=](const std::string& v) { return real_number(v, expected, accepts); },
      [](const double& v) { return number_text(v); }, std::move(default_text));
}

/// Several numbers, on one line of a file.
template <class T>
OptionRow list(OptionGroup group, std::string name, std::string value_name, std::string description,
               std::vector<T> TrainOptions::*member,
               std::function<std::vector<T>(const std::string&)> read,
               std::function<std::string(const std::vector<T>&)> write,
               std::string default_text = "") {
  OptionRow r{std::move(name),
              group,
              std::move(value_name),
              std::move(description),
              std::move(default_text),
              false,
              true};
  r.set = [=](TrainOptions& o, Values values) { o.*member = read(joined(values)); };
  r.get = [=](const TrainOptions& o) {
    return (o.*member).empty() ? Lines{} : Lines{write(o.*member)};
  };
  return r;
}

/// Rows of the learning rate: --scheduler and what its curves need.
void add_schedule_rows(std::vector<OptionRow>& table);

}  // namespace vsr::launch
