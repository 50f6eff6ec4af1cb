// SPDX-License-Identifier: Apache-2.0
// Looking at checkpoints without MPI: what is in one, whether it is whole, and how two differ.
#pragma once

#include "runtime/checkpoint/checkpoint_reader.hpp"

namespace vsr::runtime {

/// A checkpoint that was chosen among those of a folder.
struct ChosenCheckpoint {
  CheckpointHeader header;
  std::vector<std::string> passed_over;  ///< newer ones that cannot be used, with reasons
};

/// The checkpoint that `path` stands for: the step folder itself, or the newest of a run whose
/// manifest, sizes, global.h5 and HDF5 structures hold. Values are checked as they are read.
/// @throws CheckpointError (65) each candidate with its reason
ChosenCheckpoint choose_checkpoint(const std::filesystem::path& path);

/// All facts but the values: folder, format, iteration, ranks, elements, size_bytes, parameters,
/// arrays, buffers, state (counters, scaler, configuration), files.
nlohmann::json describe(const CheckpointHeader& header);

/// The same header with no other arrays than `array`, so that reading takes only that one.
/// @throws ConfigurationError (78) naming the arrays there are when it is not there
CheckpointHeader with_array_only(const CheckpointHeader& header, const std::string& array);

/// The values of one parameter in one array, checked. `header` is of with_array_only.
/// @throws CheckpointError
std::vector<float> read_parameter(const CheckpointHeader& header, const std::string& array,
                                  const ParameterRecord& parameter);

/// How two checkpoints differ.
struct Comparison {
  std::vector<std::string> differences;  ///< one line each; empty when all is equal
  std::vector<std::string> equal;        ///< what has the same bits, a line each
  bool is_equal() const noexcept { return differences.empty(); }
};

/// Compare iteration, parameters, buffers, state, configuration, and the values of each array: the
/// largest absolute difference per parameter where bits differ. The number of ranks is no
/// difference. Reads one parameter at a time.
/// @throws CheckpointError
Comparison compare_checkpoints(const CheckpointHeader& a, const CheckpointHeader& b);

}  // namespace vsr::runtime
