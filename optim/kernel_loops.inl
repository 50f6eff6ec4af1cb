// SPDX-License-Identifier: Apache-2.0
// The loops behind kernels.hpp. This file is compiled once for each instruction set, with the same
// text and other flags; VSR_KERNEL_TABLE names the table it fills.
#include <cmath>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "optim/kernel_table.hpp"

namespace vsr::optim::detail {
namespace {

#include "optim/kernel_vectors.inl"

constexpr std::int64_t kBlock = 1024;

// kCount: number of slices when it is small, so that the loop unrolls; 0: any number.
template <typename T, int kCount>
VSR_LANES_FUNCTION void add_slices8(Doubles& sum, const Slices& slices, std::int64_t element) {
  const int count = kCount > 0 ? kCount : slices.count;
  for (int slice = 0; slice < count; ++slice)
    add_widened(sum, T::widen8(slices.begin[slice] + element * T::kBytes));
}

template <typename T>
VSR_LANES_FUNCTION double sum_slices(const Slices& slices, std::int64_t element) {
  double sum = 0.0;
  for (int slice = 0; slice < slices.count; ++slice)
    sum += static_cast<double>(T::widen(slices.begin[slice] + element * T::kBytes));
  return sum;
}

VSR_LANES_FUNCTION double fold_lanes(NormKind norm, const Doubles& lanes) {
  double lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = lane_of(lanes, i);
  if (norm == NormKind::infinity) {
    double largest = 0.0;
    for (int i = 0; i < kLanes; ++i) largest = lane[i] > largest ? lane[i] : largest;
    return largest;
  }
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

// Only for blocks that hold a non-finite value, which end a step: not worth a fast path.
template <typename T>
void count_block(const Slices& slices, std::int64_t first, Counts& counts) {
  for (std::int64_t element = first; element < first + kBlock; ++element) {
    for (int slice = 0; slice < slices.count; ++slice) {
      const float value = T::widen(slices.begin[slice] + element * T::kBytes);
      const std::uint32_t magnitude = bits_of(value) & 0x7fffffffU;
      if (magnitude < 0x7f800000U) continue;
      ++(magnitude == 0x7f800000U ? counts.inf_count : counts.nan_count);
      if (counts.first_element < 0) {
        counts.first_element = element;
        counts.first_slice = slice;
      }
    }
  }
}

template <typename T, int kCount, NormKind kNorm>
Counts sum_leaves_of(const SumArguments& a) {
  Counts counts = {0, 0, -1, -1};
  for (std::int64_t block = 0; block < a.blocks; ++block) {
    Doubles squares = {};
    Doubles lanes = {};
    for (std::int64_t i = block * kBlock; i < (block + 1) * kBlock; i += kLanes) {
      Doubles sum = {};
      if (a.accumulate) load(sum, a.accumulator + i);
      add_slices8<T, kCount>(sum, a.slices, i);
      if (a.accumulator != nullptr) store(a.accumulator + i, sum);
      for (int part = 0; part < kParts; ++part) {
        const DoublesPart& value = sum.part[part];
        DoublesPart& lane = lanes.part[part];
        squares.part[part] = add_square(squares.part[part], value);
        if constexpr (kNorm == NormKind::one) lane = add_magnitude(lane, value);
        if constexpr (kNorm == NormKind::infinity) lane = max_magnitude(lane, value);
        if constexpr (kNorm == NormKind::power)
          for (int j = 0; j < kPartLanes; ++j) lane[j] += std::pow(std::fabs(value[j]), a.power);
      }
    }
    // Sums of finite inputs and their squares are finite in FP64, so this finds every inf and NaN.
    const double square_sum = fold_lanes(NormKind::two, squares);
    if (!(square_sum - square_sum == 0.0)) count_block<T>(a.slices, block * kBlock, counts);
    a.block_norms[block] = kNorm == NormKind::two ? square_sum : fold_lanes(kNorm, lanes);
  }
  return counts;
}

template <typename T>
void add_rounded_of(const Slices& slices, unsigned char* sum, std::int64_t elements) {
  unsigned char rounded[kLanes * 4];
  std::int64_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    std::memcpy(rounded, slices.begin[0] + i * T::kBytes, kLanes * T::kBytes);
    for (int slice = 1; slice < slices.count; ++slice)
      T::narrow8(rounded, T::widen8(rounded) + T::widen8(slices.begin[slice] + i * T::kBytes));
    std::memcpy(sum + i * T::kBytes, rounded, kLanes * T::kBytes);
  }
  for (; i < elements; ++i) {
    std::memcpy(rounded, slices.begin[0] + i * T::kBytes, T::kBytes);
    for (int slice = 1; slice < slices.count; ++slice)
      T::narrow(rounded, T::widen(rounded) + T::widen(slices.begin[slice] + i * T::kBytes));
    std::memcpy(sum + i * T::kBytes, rounded, T::kBytes);
  }
}

template <typename T>
void round_to_of(const float* values, unsigned char* rounded, std::int64_t elements) {
  std::int64_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    Floats eight;
    load(eight, values + i);
    T::narrow8(rounded + i * T::kBytes, eight);
  }
  for (; i < elements; ++i) T::narrow(rounded + i * T::kBytes, values[i]);
}

template <typename T>
void widen_of(const unsigned char* values, float* widened, std::int64_t elements) {
  std::int64_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) store(widened + i, T::widen8(values + i * T::kBytes));
  for (; i < elements; ++i) widened[i] = T::widen(values + i * T::kBytes);
}

// From run-time choices to the instantiation made for them.

template <typename T, NormKind kNorm>
Counts sum_leaves_count(const SumArguments& a) {
  switch (a.slices.count) {
    case 1:
      return sum_leaves_of<T, 1, kNorm>(a);
    case 2:
      return sum_leaves_of<T, 2, kNorm>(a);
    case 4:
      return sum_leaves_of<T, 4, kNorm>(a);
    default:
      return sum_leaves_of<T, 0, kNorm>(a);
  }
}

template <typename T>
Counts sum_leaves_norm(const SumArguments& a) {
  switch (a.norm) {
    case NormKind::one:
      return sum_leaves_of<T, 0, NormKind::one>(a);
    case NormKind::two:
      return sum_leaves_count<T, NormKind::two>(a);
    case NormKind::power:
      return sum_leaves_of<T, 0, NormKind::power>(a);
    default:
      return sum_leaves_of<T, 0, NormKind::infinity>(a);
  }
}

Counts sum_leaves_entry(const SumArguments& a) {
  return by_type(a.type, [&]<typename T>(T) { return sum_leaves_norm<T>(a); });
}

void add_rounded_entry(Type type, Slices slices, unsigned char* sum, std::int64_t elements) {
  by_type(type, [&]<typename T>(T) { add_rounded_of<T>(slices, sum, elements); });
}

void round_to_entry(Type type, const float* values, unsigned char* rounded, std::int64_t elements) {
  by_type(type, [&]<typename T>(T) { round_to_of<T>(values, rounded, elements); });
}

void widen_entry(Type type, const unsigned char* values, float* widened, std::int64_t elements) {
  by_type(type, [&]<typename T>(T) { widen_of<T>(values, widened, elements); });
}

#include "optim/update_loops.inl"

}  // namespace

const KernelTable VSR_KERNEL_TABLE = {&sum_leaves_entry,   &update_adam_entry, &update_sgd_entry,
                                      &lamb_moments_entry, &lamb_apply_entry,  &mean_gradient_entry,
                                      &update_ema_entry,   &add_rounded_entry, &round_to_entry,
                                      &widen_entry};

}  // namespace vsr::optim::detail
