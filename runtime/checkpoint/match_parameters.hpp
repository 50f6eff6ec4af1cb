// SPDX-License-Identifier: Apache-2.0
// Tells a checkpoint of this network from that of another one, in words a person can act on.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/snapshot.hpp"
#include "runtime/checkpoint/weights_file.hpp"

namespace vsr::runtime {

/// Compare the parameters of the network with those stored: names, shapes and places on the logical
/// global index must be equal; replica dtypes, step counts and extra numbers may differ.
/// @throws ConfigurationError (78) "checkpoint of another network" with the missing and unexpected
///         names and other shapes, the first 10 lines of them
void match_parameters(const std::vector<ParameterRecord>& expected,
                      const std::vector<ParameterRecord>& stored);

/// The same for buffers: names, shapes and dtypes.
/// @throws ConfigurationError (78)
void match_buffers(const std::vector<BufferRecord>& expected,
                   const std::vector<BufferRecord>& stored);

/// Compare names and shapes of the network's parameters and buffers with those in a file of
/// weights, in any order; dtypes may differ.
/// @throws ConfigurationError (78) naming `file` and the first 10 differences
void match_weights(const std::vector<TensorEntry>& expected, const std::vector<TensorEntry>& stored,
                   const std::string& file);

/// Compare the names of the FP32 arrays that the optimizer has with those stored, in any order.
/// @throws ConfigurationError (78) "checkpoint of another optimizer" with the missing and
///         unexpected names
void match_arrays(const std::vector<std::string>& expected, const ShardData& stored);

}  // namespace vsr::runtime
