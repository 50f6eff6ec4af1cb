// SPDX-License-Identifier: Apache-2.0
// Single pictures from and to files.
#pragma once

#include <filesystem>

#include "runtime/video/image.hpp"

namespace vsr::runtime {

/// Decode a PNG, JPEG, BMP or TIFF file (told apart by content) to 8-bit RGB: grey is spread to
/// three channels, 16 bits are scaled (within 1 of v / 257), alpha is dropped.
/// @throws DataError naming path and reason
ImageU8 read_picture(const std::filesystem::path& path);

/// Write an 8-bit RGB PNG under a temporary name, then rename it: `path` never holds half a file.
/// @throws IoError naming path and reason; ArgumentError for an empty picture
void write_png(const std::filesystem::path& path, const ImageU8& image);

}  // namespace vsr::runtime
