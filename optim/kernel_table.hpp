// SPDX-License-Identifier: Apache-2.0
// The seam between checked spans (kernels.cpp) and the loops that are compiled once for each
// instruction set: plain pointers, so that no shared template of the standard library is compiled
// with instructions that an older machine lacks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "optim/update_rules.hpp"

namespace vsr::optim::detail {

enum class Type : std::uint8_t { fp16, bf16, fp32 };
enum class NormKind : std::uint8_t { one, two, infinity, power };

struct Slices {
  const unsigned char* const* begin;
  int count;
};

struct Targets {
  unsigned char* const* begin;
  int count;
};

struct Counts {
  std::int64_t inf_count;
  std::int64_t nan_count;
  std::int64_t first_element;
  int first_slice;
};

struct SumArguments {
  Type type;
  Slices slices;
  std::int64_t blocks;
  double* accumulator;  // may be null
  bool accumulate;
  NormKind norm;
  double power;  // of NormKind::power
  double* block_norms;
};

struct UpdateArguments {
  Type type;
  std::int64_t first;
  std::int64_t last;
  Slices slices;
  const double* sums;  // may be null
  double factor;
  float* master;
  float* moment1;
  float* moment2;
  Targets targets;
};

// Sums of squares of one norm block of a parameter.
struct SquareSums {
  double master;
  double direction;
};

struct KernelTable {
  Counts (*sum_leaves)(const SumArguments&);
  void (*update_adam)(const UpdateArguments&, WeightDecay, const AdamCoefficients&);
  void (*update_sgd)(const UpdateArguments&, const SgdCoefficients&);
  void (*lamb_moments)(const UpdateArguments&, const LambCoefficients&, SquareSums* blocks);
  void (*lamb_apply)(const UpdateArguments&, const LambCoefficients&);
  void (*mean_gradient)(const UpdateArguments&, float* gradient);
  void (*update_ema)(const float* master, float* ema, std::int64_t elements, float one_minus_decay);
  void (*add_rounded)(Type, Slices, unsigned char* sum, std::int64_t elements);
  void (*round_to)(Type, const float* values, unsigned char* rounded, std::int64_t elements);
  void (*widen)(Type, const unsigned char* values, float* widened, std::int64_t elements);
};

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;    // where VSR_X86_KERNELS is defined
extern const KernelTable kAvx512Kernels;  // where VSR_X86_KERNELS is defined

}  // namespace vsr::optim::detail
