// SPDX-License-Identifier: Apache-2.0
// The safetensors format: a length, a JSON table of names, types, shapes and places, and the bytes.
// Strict on both sides, so that what we write any reader takes and what we read has one meaning.
#pragma once

#include <map>
#include <span>

#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/weights_file.hpp"

namespace vsr::runtime {

/// Open and check the table of a .safetensors file: places lie within the file, touch each other
/// and leave no gap, sizes fit shapes, names are unique.
/// @throws CheckpointError naming the file and the entry; IoError
std::unique_ptr<WeightsFile> open_safetensors(const std::filesystem::path& path);

/// The first bytes of a file with these tensors one after the other: length and table. It ends at a
/// multiple of 8 bytes. @param facts go into __metadata__
std::string safetensors_header(const std::vector<TensorEntry>& tensors,
                               const std::map<std::string, std::string>& facts);

}  // namespace vsr::runtime
