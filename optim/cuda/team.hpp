// SPDX-License-Identifier: Apache-2.0
// The little that differs between a CUDA block and a plain loop that plays one, so that the bodies
// of the kernels are ordinary functions that a machine without a GPU runs too. A body is a sequence
// of phases: all threads finish one before any begins the next. Also moves of four neighbouring
// elements, one transaction on a device. C++17, because nvcc reads it.
#pragma once

#include <cstdint>
#include <cstring>

#include "optim/cuda/launch_arguments.hpp"

namespace vsr::optim::detail {

#if defined(__CUDA_ARCH__)
#define VSR_UNROLL _Pragma("unroll")
#define VSR_UNROLL_16 _Pragma("unroll 16")
#define VSR_NO_UNROLL _Pragma("unroll 1")
#else
#define VSR_UNROLL
#define VSR_UNROLL_16
#define VSR_NO_UNROLL
#endif

#if defined(__CUDACC__)
/// The threads of this CUDA block.
struct CudaTeam {
  template <typename Phase>
  VSR_HOST_DEVICE void all(const Phase& phase) {
#if defined(__CUDA_ARCH__)
    phase(static_cast<int>(threadIdx.x));
    __syncthreads();
#else
    static_cast<void>(phase);
#endif
  }
};
#endif

// Integers only: their sums and maxima do not depend on the order in which threads arrive.
VSR_HOST_DEVICE void add_shared(unsigned long long& total, unsigned long long value) {
#if defined(__CUDA_ARCH__)
  atomicAdd(&total, value);
#else
  total += value;
#endif
}

VSR_HOST_DEVICE void max_shared(unsigned long long& largest, unsigned long long value) {
#if defined(__CUDA_ARCH__)
  atomicMax(&largest, value);
#else
  if (value > largest) largest = value;
#endif
}

template <typename V>
struct alignas(sizeof(V) * kGroup < 16 ? sizeof(V) * kGroup : 16) Four {
  V value[kGroup];
};

template <typename V>
VSR_HOST_DEVICE Four<V> load_four(const void* base, std::int64_t element) {
  return reinterpret_cast<const Four<V>*>(static_cast<const V*>(base) + element)[0];
}
template <typename V>
VSR_HOST_DEVICE void store_four(void* base, std::int64_t element, const Four<V>& values) {
  V* const to = static_cast<V*>(base) + element;
#if defined(__CUDA_ARCH__)
  // Spelt out, because nvcc cuts this assignment into single stores where a branch is near.
  std::uint32_t word[sizeof values / 4];
  std::memcpy(word, &values, sizeof word);
  if constexpr (sizeof values == 8) {
    asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word[0]), "r"(word[1]) : "memory");
  } else {
    VSR_UNROLL
    for (unsigned i = 0; i < sizeof word / 4; i += 4)
      asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<char*>(to) + 4 * i),
                   "r"(word[i]), "r"(word[i + 1]), "r"(word[i + 2]), "r"(word[i + 3])
                   : "memory");
  }
#else
  *reinterpret_cast<Four<V>*>(to) = values;
#endif
}

/// The elements of one thread: those of four neighbours that lie in a piece.
struct Group {
  std::int64_t start;
  int begin;  // [begin, end) of [0, 4) belong to the piece
  int end;
};
/// The same where all four do. A type of its own, so that its moves are never merged with those of
/// single elements.
struct WholeGroup {
  std::int64_t start;
};

VSR_HOST_DEVICE Group group_of(std::int64_t block, int thread, std::int64_t first,
                               std::int64_t last) {
  const std::int64_t start = block * kTeamBlock + thread * kGroup;
  const std::int64_t begin = first - start;
  const std::int64_t end = last - start;
  return {start,
          begin < 0        ? 0
          : begin > kGroup ? kGroup
                           : static_cast<int>(begin),
          end < 0        ? 0
          : end > kGroup ? kGroup
                         : static_cast<int>(end)};
}

/// Call `action` with the group as the type that suits it; not at all for an empty one.
template <typename Action>
VSR_HOST_DEVICE void with_group(const Group& group, const Action& action) {
  if (group.begin == 0 && group.end == kGroup)
    action(WholeGroup{group.start});
  else if (group.begin < group.end)
    action(group);
}

/// The group's elements of an array; zero where they lie outside the piece.
template <typename V>
VSR_HOST_DEVICE Four<V> load_group(const void* base, const WholeGroup& group) {
  return load_four<V>(base, group.start);
}
template <typename V>
VSR_HOST_DEVICE Four<V> load_group(const void* base, const Group& group) {
  Four<V> values = {};
  VSR_UNROLL
  for (int i = 0; i < kGroup; ++i)
    if (i >= group.begin && i < group.end)
      values.value[i] = static_cast<const V*>(base)[group.start + i];
  return values;
}

template <typename V>
VSR_HOST_DEVICE void store_group(void* base, const WholeGroup& group, const Four<V>& values) {
  store_four<V>(base, group.start, values);
}
template <typename V>
VSR_HOST_DEVICE void store_group(void* base, const Group& group, const Four<V>& values) {
  VSR_UNROLL
  for (int i = 0; i < kGroup; ++i)
    if (i >= group.begin && i < group.end) static_cast<V*>(base)[group.start + i] = values.value[i];
}

// Element types: how one is stored, and its conversions.

struct Fp16Element {
  using Bits = std::uint16_t;
  VSR_HOST_DEVICE float widen(Bits bits) {
#if defined(__CUDA_ARCH__)
    // One instruction, exact for finite values; what it makes of a NaN is not specified.
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return (bits & 0x7c00U) == 0x7c00U ? fp16_to_float(bits) : value;
#else
    return fp16_to_float(bits);
#endif
  }
  VSR_HOST_DEVICE Bits narrow(float value) {
    return float_to_fp16(value);
  }
};

struct Bf16Element {
  using Bits = std::uint16_t;
  VSR_HOST_DEVICE float widen(Bits bits) { return bf16_to_float(bits); }
  VSR_HOST_DEVICE Bits narrow(float value) { return float_to_bf16(value); }
};

struct Fp32Element {
  using Bits = float;
  VSR_HOST_DEVICE float widen(Bits value) { return value; }
  VSR_HOST_DEVICE Bits narrow(float value) { return value; }
};

/// Host only. Calls `action` with a value of the element type that `type` names.
template <typename Action>
inline auto with_element(Type type, const Action& action) {
  if (type == Type::fp16) return action(Fp16Element());
  return type == Type::bf16 ? action(Bf16Element()) : action(Fp32Element());
}

}  // namespace vsr::optim::detail
