// SPDX-License-Identifier: Apache-2.0
// FP16 and BF16 additions on bit patterns, for reductions by message: MPI has no such types. Every
// instruction set gives the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace vsr::comm {

/// The value of an IEEE binary16 pattern, exactly; a NaN becomes the quiet NaN of FP32.
float fp16_to_float(std::uint16_t bits) noexcept;
/// Round to the nearest FP16 value, ties to even; overflow gives inf, a NaN gives 0x7e00.
std::uint16_t float_to_fp16(float value) noexcept;
/// The value of a BF16 pattern, exactly.
float bf16_to_float(std::uint16_t bits) noexcept;
/// Round to the nearest BF16 value, ties to even; overflow gives inf, a NaN gives 0x7fc0.
std::uint16_t float_to_bf16(float value) noexcept;

/// Add `values` to `sum`, element by element: FP32 addition of two FP16 values, rounded once to
/// nearest even, which equals the FP16 addition of IEEE 754. inf is overflow, not an error; a NaN
/// result is 0x7e00 whichever operand it came from, so the order of operands never shows.
/// @param values host memory; may not overlap `sum`
/// @throws ArgumentError when the sizes differ
void add_fp16(std::span<const std::uint16_t> values, std::span<std::uint16_t> sum);
/// The same in BF16; a NaN result is 0x7fc0.
void add_bf16(std::span<const std::uint16_t> values, std::span<std::uint16_t> sum);

/// Which loop runs: `automatic` takes AVX2 with F16C where the processor has them.
enum class HalfLoop { automatic, scalar, avx2 };
/// Choose the loop of this process from now on (for tests and benchmarks).
/// @throws ConfigurationError when the processor lacks it
void choose_half_loop(HalfLoop loop);
/// "scalar" or "avx2": the loop that runs now.
std::string_view half_loop() noexcept;

}  // namespace vsr::comm
