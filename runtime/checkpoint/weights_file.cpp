// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/weights_file.hpp"

#include <cstring>

#include "comm/error.hpp"
#include "comm/half_sum.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/checkpoint/torch_archive.hpp"

namespace vsr::runtime {
namespace {

template <typename T, typename Convert>
std::vector<float> converted(const std::vector<std::byte>& bytes, Convert convert) {
  std::vector<float> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = convert(value);
  }
  return values;
}

}  // namespace

std::unique_ptr<WeightsFile> open_weights(const std::filesystem::path& path,
                                          const std::string& key) {
  const std::string extension = path.extension().string();
  if (extension == ".safetensors") {
    if (!key.empty())
      throw UsageError("--key " + key + ": a .safetensors file has no entries to choose from");
    return open_safetensors(path);
  }
  if (extension == ".pth" || extension == ".pt" || extension == ".ckpt")
    return open_torch_archive(path, key);
  throw UsageError("'" + path.string() + "': got the extension \"" + extension +
                   "\", expected .safetensors, .pth, .pt or .ckpt");
}

std::vector<float> as_float(const std::vector<std::byte>& bytes, const std::string& dtype,
                            const std::string& name) {
  if (dtype == "fp32") return converted<float>(bytes, [](float value) { return value; });
  if (dtype == "fp16") return converted<std::uint16_t>(bytes, comm::fp16_to_float);
  if (dtype == "bf16") return converted<std::uint16_t>(bytes, comm::bf16_to_float);
  if (dtype == "fp64")
    return converted<double>(bytes, [](double value) { return static_cast<float>(value); });
  throw CheckpointError("'" + name + "' holds " + dtype + ", expected fp16, bf16, fp32 or fp64");
}

}  // namespace vsr::runtime
