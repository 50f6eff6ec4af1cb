// SPDX-License-Identifier: Apache-2.0
// Vectors of eight for the loops of kernel_loops.inl: the compiler's own vector types for IEEE
// operations, and intrinsics only for what they lack (half conversion, square root). Included
// inside an unnamed namespace, once for each instruction set.

using Floats = float __attribute__((vector_size(32), aligned(32)));
// Eight FP64 lanes in as many registers as they take: the compiler cuts vectors that are wider than
// a register through memory.
#if defined(__AVX512F__)
constexpr int kParts = 1;
#elif defined(__AVX__)
constexpr int kParts = 2;
#else
constexpr int kParts = 4;
#endif
constexpr int kPartLanes = 8 / kParts;
using DoublesPart = double __attribute__((vector_size(64 / kParts), aligned(64 / kParts)));
using FloatsPart = float __attribute__((vector_size(32 / kParts), aligned(32 / kParts)));
struct Doubles {
  DoublesPart part[kParts];
};
using Words = std::uint32_t __attribute__((vector_size(32), aligned(32)));
using Shorts = std::uint16_t __attribute__((vector_size(16), aligned(16)));
constexpr std::int64_t kLanes = 8;

#define VSR_LANES_FUNCTION [[maybe_unused]] static inline __attribute__((always_inline))

// A member's: without `static`.
#define VSR_MEMBER_FUNCTION inline __attribute__((always_inline))

template <typename V, typename T>
VSR_LANES_FUNCTION void load(V& vector, const T* from) {
  std::memcpy(&vector, from, sizeof vector);
}
template <typename V, typename T>
VSR_LANES_FUNCTION void store(T* to, const V& vector) {
  std::memcpy(to, &vector, sizeof vector);
}

struct VectorMath {
  VSR_LANES_FUNCTION Floats square_root(const Floats& value) {
#if defined(__AVX__)
    return reinterpret_cast<Floats>(_mm256_sqrt_ps(reinterpret_cast<__m256>(value)));
#else
    Floats root = {};
    for (int lane = 0; lane < kLanes; ++lane) root[lane] = std::sqrt(value[lane]);
    return root;
#endif
  }
};

VSR_LANES_FUNCTION Floats unscaled(const Doubles& sum, double factor) {
  FloatsPart parts[kParts];
  for (int i = 0; i < kParts; ++i)
    parts[i] = __builtin_convertvector(sum.part[i] * factor, FloatsPart);
  Floats rounded;
#if defined(__AVX__) && !defined(__AVX512F__)
  // Two stores and one wider load would wait for each other.
  rounded = reinterpret_cast<Floats>(_mm256_set_m128(parts[1], parts[0]));
#else
  std::memcpy(&rounded, parts, sizeof rounded);
#endif
  return rounded;
}

VSR_LANES_FUNCTION void add_widened(Doubles& sum, const Floats& values) {
  FloatsPart parts[kParts];
  std::memcpy(parts, &values, sizeof values);
  for (int i = 0; i < kParts; ++i) sum.part[i] += __builtin_convertvector(parts[i], DoublesPart);
}

VSR_LANES_FUNCTION double lane_of(const Doubles& values, int lane) {
  return values.part[lane / kPartLanes][lane % kPartLanes];
}

/// Element types: bytes of one, and conversion of one and of eight from and to FP32.
struct Fp16 {
  static constexpr std::int64_t kBytes = 2;
  VSR_LANES_FUNCTION float widen(const unsigned char* at) {
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return fp16_to_float(bits);
  }
  VSR_LANES_FUNCTION void narrow(unsigned char* at, float value) {
    const std::uint16_t bits = float_to_fp16(value);
    std::memcpy(at, &bits, sizeof bits);
  }
  VSR_LANES_FUNCTION Floats widen8(const unsigned char* at) {
#if defined(__F16C__)
    return reinterpret_cast<Floats>(
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
#else
    Floats values = {};
    for (int lane = 0; lane < kLanes; ++lane) values[lane] = widen(at + lane * kBytes);
    return values;
#endif
  }
  VSR_LANES_FUNCTION void narrow8(unsigned char* at, const Floats& values) {
#if defined(__F16C__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at),
                     _mm256_cvtps_ph(reinterpret_cast<__m256>(values),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    for (int lane = 0; lane < kLanes; ++lane) narrow(at + lane * kBytes, values[lane]);
#endif
  }
};

struct Bf16 {
  static constexpr std::int64_t kBytes = 2;
  VSR_LANES_FUNCTION float widen(const unsigned char* at) {
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return bf16_to_float(bits);
  }
  VSR_LANES_FUNCTION void narrow(unsigned char* at, float value) {
    const std::uint16_t bits = float_to_bf16(value);
    std::memcpy(at, &bits, sizeof bits);
  }
  VSR_LANES_FUNCTION Floats widen8(const unsigned char* at) {
    Shorts shorts;
    load(shorts, at);
    return reinterpret_cast<Floats>(__builtin_convertvector(shorts, Words) << 16);
  }
  VSR_LANES_FUNCTION void narrow8(unsigned char* at, const Floats& values) {
    store(at, __builtin_convertvector(bf16_bits(reinterpret_cast<Words>(values)), Shorts));
  }
};

struct Fp32 {
  static constexpr std::int64_t kBytes = 4;
  VSR_LANES_FUNCTION float widen(const unsigned char* at) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  VSR_LANES_FUNCTION void narrow(unsigned char* at, float value) {
    std::memcpy(at, &value, sizeof value);
  }
  VSR_LANES_FUNCTION Floats widen8(const unsigned char* at) {
    Floats values;
    load(values, at);
    return values;
  }
  VSR_LANES_FUNCTION void narrow8(unsigned char* at, const Floats& values) { store(at, values); }
};

/// Calls `use` with a value of the element type that `type` names.
template <typename Use>
VSR_LANES_FUNCTION auto by_type(Type type, const Use& use) {
  if (type == Type::fp16) return use(Fp16());
  return type == Type::bf16 ? use(Bf16()) : use(Fp32());
}
