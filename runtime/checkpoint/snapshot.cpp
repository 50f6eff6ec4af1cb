// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot.hpp"

#include <cmath>
#include <set>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

/// What else the HDF5 files hold beside the arrays.
const std::set<std::string> kReservedNames = {"intervals", "params", "buffers", "state"};

/// HDF5 reads '/' as a path and "." as the folder itself.
bool is_usable_name(const std::string& name) {
  return !name.empty() && name != "." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

void validate_name(const std::string& kind, const std::string& name, std::set<std::string>& seen) {
  VSR_CHECK(is_usable_name(name),
            kind + " name '" + name + "' cannot be stored: it is empty, \".\" or holds '/' or NUL");
  VSR_CHECK(seen.insert(name).second, kind + " '" + name + "' appears twice");
}

void validate_parameters(const std::vector<ParameterRecord>& parameters) {
  std::set<std::string> seen;
  std::int64_t next = 0;
  for (const ParameterRecord& parameter : parameters) {
    validate_name("parameter", parameter.name, seen);
    VSR_CHECK(elements_of_shape(parameter.shape) == parameter.numel,
              "parameter '" + parameter.name + "' has " + std::to_string(parameter.numel) +
                  " elements, which is not the product of its shape");
    VSR_CHECK(parameter.begin == next, "parameter '" + parameter.name + "' begins at " +
                                           std::to_string(parameter.begin) + ", expected " +
                                           std::to_string(next));
    next += parameter.numel;
    element_bytes(parameter.dtype);
    VSR_CHECK(parameter.extra.size() == parameters.front().extra.size(),
              "parameter '" + parameter.name + "' has other extra numbers than the first one");
    for (const auto& [key, value] : parameter.extra) {
      VSR_CHECK(is_usable_name(key), "extra number '" + key + "' has no usable name");
      VSR_CHECK(std::isfinite(value), "extra number '" + key + "' of parameter '" + parameter.name +
                                          "' is not finite, which JSON cannot hold");
      VSR_CHECK(parameters.front().extra.count(key) == 1,
                "parameter '" + parameter.name + "' alone has the extra number '" + key + "'");
    }
  }
}

void validate_buffers(const std::vector<BufferRecord>& buffers) {
  std::set<std::string> seen;
  for (const BufferRecord& buffer : buffers) {
    validate_name("buffer", buffer.name, seen);
    const std::int64_t expected = elements_of_shape(buffer.shape) * element_bytes(buffer.dtype);
    VSR_CHECK(static_cast<std::int64_t>(buffer.bytes.size()) == expected,
              "buffer '" + buffer.name + "' has " + std::to_string(buffer.bytes.size()) +
                  " bytes, expected " + std::to_string(expected));
  }
}

void validate_shard(const ShardData& shard, std::int64_t total) {
  std::int64_t last = 0;
  for (const comm::Interval interval : shard.intervals) {
    if (interval.is_empty()) continue;
    VSR_CHECK(interval.begin >= last && interval.end <= total,
              "interval [" + std::to_string(interval.begin) + ", " + std::to_string(interval.end) +
                  ") overlaps the one before it or leaves the " + std::to_string(total) +
                  " elements of the network");
    last = interval.end;
  }
  for (const auto& [name, values] : shard.arrays) {
    VSR_CHECK(is_usable_name(name) && kReservedNames.count(name) == 0,
              "array name '" + name + "' cannot be stored");
    VSR_CHECK(static_cast<std::int64_t>(values.size()) == elements_of(shard.intervals),
              "array '" + name + "' has " + std::to_string(values.size()) +
                  " values, its intervals have " + std::to_string(elements_of(shard.intervals)));
  }
}

void validate_state(const nlohmann::json& value, const std::string& key) {
  if (value.is_number_float())
    VSR_CHECK(std::isfinite(value.get<double>()),
              "state" + key + " is not finite, which JSON cannot hold");
  if (value.is_structured())
    for (const auto& [name, item] : value.items()) validate_state(item, key + "." + name);
}

}  // namespace

std::int64_t elements_of_shape(const std::vector<std::int64_t>& shape) {
  std::int64_t result = 1;
  for (const std::int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(result, extent, &result)) return -1;
  return result;
}

std::int64_t total_elements(const std::vector<ParameterRecord>& parameters) {
  return parameters.empty() ? 0 : parameters.back().begin + parameters.back().numel;
}

std::int64_t elements_of(const std::vector<comm::Interval>& intervals) {
  std::int64_t total = 0;
  for (const comm::Interval interval : intervals)
    if (!interval.is_empty()) total += interval.size();
  return total;
}

std::int64_t element_bytes(const std::string& dtype) {
  if (dtype == "uint8") return 1;
  if (dtype == "fp16" || dtype == "bf16") return 2;
  if (dtype == "fp32" || dtype == "int32") return 4;
  if (dtype == "fp64" || dtype == "int64") return 8;
  throw ArgumentError("dtype '" + dtype +
                      "' cannot be stored: got none of fp16 bf16 fp32 fp64 int32 int64 uint8");
}

void validate(const Snapshot& snapshot) {
  VSR_CHECK(snapshot.iteration >= 0,
            "iteration " + std::to_string(snapshot.iteration) + ", expected at least 0");
  validate_parameters(snapshot.parameters);
  validate_buffers(snapshot.buffers);
  validate_shard(snapshot.shard, total_elements(snapshot.parameters));
  validate_state(snapshot.state, "");
}

}  // namespace vsr::runtime
