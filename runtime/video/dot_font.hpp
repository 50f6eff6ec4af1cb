// SPDX-License-Identifier: Apache-2.0
// The dots of caption letters. Private to this folder.
#pragma once

#include <array>
#include <cstdint>

namespace vsr::runtime {

inline constexpr int kGlyphWidth = 5;
inline constexpr int kGlyphHeight = 7;

/// Rows from top to bottom; bit 4 is the leftmost dot.
using Glyph = std::array<std::uint8_t, kGlyphHeight>;

/// Dots of an ASCII letter, digit or common sign; small letters as capitals, unknown ones as '?'.
const Glyph& glyph_of(char letter) noexcept;

}  // namespace vsr::runtime
