// SPDX-License-Identifier: Apache-2.0
// A network's state with values in closed form, cut for any number of ranks as the optimizer cuts
// it: the tests of checkpoints write it, damage it, and compare what comes back with the formula.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/shard.hpp"
#include "runtime/checkpoint/snapshot.hpp"
#include "tests/support/temporary_folder.hpp"

namespace vsr::test {

/// Value `index` of an array at `iteration`; exact in FP32.
inline float sample_value(const std::string& array, std::int64_t iteration, std::int64_t index) {
  const std::int64_t kind = array == "master" ? 1 : array == "exp_avg" ? 2 : array == "ema" ? 4 : 3;
  return static_cast<float>((index * 7 + iteration * 131 + kind * 1009) % 65521 - 32000) / 64.0F;
}

/// Convolution, bias, scalar, empty tensor, and one of `wide` x 3 x 5 elements.
inline std::vector<runtime::ParameterRecord> sample_parameters(std::int64_t wide) {
  std::vector<runtime::ParameterRecord> all = {{"head.weight", {16, 3, 3, 3}, "fp16", 0, 0, 0, {}},
                                               {"head.bias", {16}, "fp32", 0, 0, 0, {}},
                                               {"slope", {}, "fp16", 0, 0, 0, {}},
                                               {"nothing", {0, 4}, "fp32", 0, 0, 0, {}},
                                               {"body.weight", {wide, 3, 5}, "fp16", 0, 0, 0, {}},
                                               {"tail.bias", {7}, "fp32", 0, 0, 0, {}}};
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].numel = 1;
    for (const std::int64_t extent : all[i].shape) all[i].numel *= extent;
    all[i].begin = begin;
    begin += all[i].numel;
    all[i].steps = 10 + static_cast<std::int64_t>(i);
    all[i].extra["beta1_power"] = 0.1 * static_cast<double>(i + 1);  // no finite binary fraction
  }
  return all;
}

/// The pieces of `rank`: FP16 and FP32 parameters form a segment each, cut apart from the other.
inline std::vector<comm::Interval> sample_intervals(
    const std::vector<runtime::ParameterRecord>& parameters, int rank, int world) {
  std::vector<comm::Interval> pieces;
  for (const std::string dtype : {"fp16", "fp32"}) {
    std::int64_t length = 0;
    for (const auto& parameter : parameters)
      if (parameter.dtype == dtype) length += parameter.numel;
    const comm::Interval mine = comm::shard_of(comm::padded_to_block(length), rank, world);
    std::int64_t at = 0;
    for (const auto& parameter : parameters) {
      if (parameter.dtype != dtype) continue;
      const comm::Interval part = comm::intersect(mine, {at, at + parameter.numel});
      if (!part.is_empty())
        pieces.push_back({part.begin - at + parameter.begin, part.end - at + parameter.begin});
      at += parameter.numel;
    }
  }
  std::sort(pieces.begin(), pieces.end(),
            [](comm::Interval a, comm::Interval b) { return a.begin < b.begin; });
  return pieces;
}

inline std::vector<float> sample_values(const std::string& array, std::int64_t iteration,
                                        const std::vector<comm::Interval>& intervals) {
  std::vector<float> values;
  for (const comm::Interval piece : intervals)
    for (std::int64_t i = piece.begin; i < piece.end; ++i)
      values.push_back(sample_value(array, iteration, i));
  return values;
}

template <typename T>
std::vector<std::byte> bytes_of_values(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline const std::vector<std::string> kAdamArrays = {"master", "exp_avg", "exp_avg_sq"};

inline runtime::Snapshot sample_snapshot(std::int64_t iteration, int rank, int world,
                                         std::int64_t wide = 400,
                                         const std::vector<std::string>& arrays = kAdamArrays) {
  runtime::Snapshot snapshot;
  snapshot.iteration = iteration;
  snapshot.parameters = sample_parameters(wide);
  snapshot.buffers = {
      {"norm.running_mean", {3}, "fp32", bytes_of_values<float>({0.5F, -1.25F, 3.0F})},
      {"norm.batches", {}, "int64", bytes_of_values<std::int64_t>({iteration})},
      {"a.half", {2}, "fp16", bytes_of_values<std::uint16_t>({0x3c00, 0xc000})},
      {"a.bfloat", {1, 2}, "bf16", bytes_of_values<std::uint16_t>({0x3f80, 0x7f80})}};
  snapshot.state = {{"scaler", {{"scale", 65536.0}, {"clean_steps", 17}}},
                    {"seed", 18446744073709551615ULL},
                    {"lr", 0.1},
                    {"best_metric", nullptr},
                    {"name", "Größe"}};
  snapshot.shard.intervals = sample_intervals(snapshot.parameters, rank, world);
  for (const std::string& array : arrays)
    snapshot.shard.arrays[array] = sample_values(array, iteration, snapshot.shard.intervals);
  return snapshot;
}

/// True when both hold the same bits: NaN equals itself, 0.0 differs from -0.0.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline void flip_bit(const std::filesystem::path& path, std::size_t byte, int bit) {
  std::string text = read_bytes(path);
  text.at(byte) = static_cast<char>(text.at(byte) ^ (1 << bit));
  write_bytes(path, text);
}

/// Names in a folder that begin with a dot: what saves leave only when they die.
inline std::vector<std::string> hidden_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().front() == '.')
      names.push_back(entry.path().filename().string());
  return names;
}

}  // namespace vsr::test
