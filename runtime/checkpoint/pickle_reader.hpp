// SPDX-License-Identifier: Apache-2.0
// The tensors that a pickle of torch.save lists. A pickle is a program; this interpreter knows the
// few instructions and the few names that a state dict is made of, and builds records from them. It
// calls nothing and imports nothing: any other instruction or name is an error. Private to this
// folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace vsr::runtime {

/// A tensor as a pickle describes it: a strided view into a storage.
struct PickledTensor {
  std::string name;
  std::string dtype;    ///< of the storage, as in BufferRecord
  std::string storage;  ///< name of the member data/STORAGE
  std::int64_t storage_elements = 0;
  std::int64_t offset = 0;  ///< elements
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< elements; as many as extents
};

/// Read the state dict in `pickle` (protocol 2, as torch.save writes it).
/// @param key the entry of the outermost dict that holds the weights; empty: params_ema, else
///        params, else that dict itself
/// @returns its tensors with `module.` taken off the names; every view lies within its storage and
///          has no more elements than it
/// @throws CheckpointError naming the byte, and the instruction or name that is not allowed
std::vector<PickledTensor> tensors_in_pickle(std::span<const std::byte> pickle,
                                             const std::string& key);

}  // namespace vsr::runtime
