// SPDX-License-Identifier: Apache-2.0
// Small files of weights in the formats that are imported, for tests that damage them.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/safetensors.hpp"
#include "tests/support/torch_archive_writing.hpp"

namespace vsr::test {

inline std::vector<TorchTensor> sample_tensors() {
  return {{"conv.weight", "FloatStorage", "0", 24, 0, {2, 3, 4}, {12, 4, 1}},
          {"conv.bias", "HalfStorage", "1", 2, 0, {2}, {1}},
          {"turned", "FloatStorage", "0", 24, 3, {3, 5}, {1, 4}}};
}

inline std::string sample_archive() {
  const std::string dict = "}q\x01(" + pickled("params") + pickled_dict(sample_tensors()) +
                           pickled("params_ema") + pickled_dict(sample_tensors()) + "u";
  return ZipBuilder()
      .add("net/data.pkl", whole_pickle(dict))
      .add("net/byteorder", "little")
      .add("net/data/0", std::string(96, 'x'))
      .add("net/data/1", "abcd")
      .finish();
}

inline std::string sample_safetensors() {
  const std::vector<runtime::TensorEntry> entries = {
      {"conv.weight", {2, 3, 4}, "fp32", 24}, {"conv.bias", {2}, "fp16", 2}, {"e", {0}, "fp32", 0}};
  return runtime::safetensors_header(entries, {{"format", "pt"}}) + std::string(100, 'x');
}

}  // namespace vsr::test
