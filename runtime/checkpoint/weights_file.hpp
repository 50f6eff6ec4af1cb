// SPDX-License-Identifier: Apache-2.0
// Files of named tensors that other programs write, behind one face: what is in them is listed
// first, and values are read by name, so that no claim of a file decides how much memory we take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace vsr::runtime {

/// Longest name that is read; a longer one is no name of a tensor.
inline constexpr std::size_t kMostNameBytes = 4096;

/// One tensor of a file, without its values.
struct TensorEntry {
  std::string name;
  std::vector<std::int64_t> shape;  ///< no extent is negative; empty for a scalar
  std::string dtype;                ///< as in BufferRecord
  std::int64_t numel = 0;           ///< product of `shape`; no more than the file has room for
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

/// An open file of weights. Not changed while it is open.
class WeightsFile {
 public:
  virtual ~WeightsFile() = default;
  /// In the order of the file; names are unique.
  virtual const std::vector<TensorEntry>& tensors() const = 0;
  /// Values of tensors()[index] in logical order, little-endian.
  /// @throws CheckpointError where the file is damaged; IoError
  virtual std::vector<std::byte> read(std::size_t index) const = 0;
};

/// Open a .safetensors file or a zip archive of torch.save (.pth, .pt, .ckpt), by its extension.
/// @param key the entry of a .pth that holds the weights; empty: params_ema, else params, else the
///        archive itself
/// @throws CheckpointError (65) naming the file and what is wrong or not allowed in it
/// @throws UsageError (64) for another extension
std::unique_ptr<WeightsFile> open_weights(const std::filesystem::path& path,
                                          const std::string& key);

/// The values of a tensor as FP32: exact for fp16, bf16 and fp32, rounded to nearest for fp64.
/// @throws CheckpointError for a dtype that holds no weights, naming `name`
std::vector<float> as_float(const std::vector<std::byte>& bytes, const std::string& dtype,
                            const std::string& name);

}  // namespace vsr::runtime
