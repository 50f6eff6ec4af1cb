// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/json_shape.hpp"

#include <nlohmann/json.hpp>
#include <set>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

using nlohmann::json;

/// Counts levels and keeps the names of the first one.
class Shape : public nlohmann::json_sax<json> {
 public:
  Shape(int most_levels, const std::string& what) : most_levels_(most_levels), what_(what) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (level_ == 1 && !names_.insert(name).second)
      throw CheckpointError(what_ + " names '" + name + "' twice");
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;
  }

 private:
  bool enter() {
    if (++level_ > most_levels_) throw CheckpointError(what_ + " is nested too deep");
    return true;
  }
  bool leave() {
    --level_;
    return true;
  }

  int most_levels_;
  std::string what_;
  int level_ = 0;
  std::set<std::string> names_;
};

}  // namespace

void check_json_shape(const std::string& text, int most_levels, const std::string& what) {
  Shape shape(most_levels, what);
  json::sax_parse(text, &shape);
}

}  // namespace vsr::runtime
