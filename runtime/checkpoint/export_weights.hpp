// SPDX-License-Identifier: Apache-2.0
// Weights for other programs: one file with every parameter and buffer by name.
#pragma once

#include "runtime/checkpoint/checkpoint_reader.hpp"

namespace vsr::runtime {

struct ExportOptions {
  std::string array = "master";  ///< or "ema": the moving average of the masters
  std::string dtype = "fp32";    ///< or "fp16", rounded to nearest even
};

struct ExportResult {
  std::int64_t tensors = 0;
  std::int64_t size_bytes = 0;
  std::int64_t overflows = 0;  ///< finite values that are infinite in FP16
};

/// Write the weights in `header` to `target`, which appears when it is complete: .safetensors, or
/// .h5 (one dataset per name). Buffers keep their dtype; a scalar keeps its shape. Holds one
/// parameter in memory.
/// @throws UsageError (64) for another extension or dtype; ConfigurationError (78) when `target`
///         exists or the array is not there; CheckpointError for damaged values; IoError
ExportResult export_weights(const CheckpointHeader& header, const std::filesystem::path& target,
                            const ExportOptions& options);

}  // namespace vsr::runtime
