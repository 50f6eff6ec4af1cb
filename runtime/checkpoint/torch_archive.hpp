// SPDX-License-Identifier: Apache-2.0
// The zip archives that torch.save writes, read without Python and without running what they hold.
#pragma once

#include "runtime/checkpoint/weights_file.hpp"

namespace vsr::runtime {

/// Open an archive with a state dict. @param key as in open_weights
/// @throws CheckpointError naming the file and what is wrong or not allowed in it; files from
/// before
///         the zip format are refused with the way to save them anew
std::unique_ptr<WeightsFile> open_torch_archive(const std::filesystem::path& path,
                                                const std::string& key);

}  // namespace vsr::runtime
