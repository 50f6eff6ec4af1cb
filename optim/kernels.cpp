// SPDX-License-Identifier: Apache-2.0
// Checks lengths, chooses the instruction set, and hands plain pointers to the compiled loops.
#include "optim/kernels.hpp"

#include <cmath>
#include <cstdlib>
#include <string>

#include "comm/error.hpp"
#include "optim/kernel_call.hpp"

namespace vsr::optim {

using detail::Places;
using detail::Sources;
using detail::table;
using detail::type_of;

std::string_view isa_name(Isa isa) noexcept {
  switch (isa) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    default:
      return "scalar";
  }
}

bool is_supported(Isa isa) noexcept {
#if defined(VSR_X86_KERNELS)
  if (isa == Isa::avx512)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("f16c");
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#endif
  return isa == Isa::scalar;
}

Isa active_isa() {
  static const Isa chosen = [] {
    const char* forced = std::getenv("VSR_FORCE_ISA");
    for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::scalar}) {
      if (forced != nullptr && *forced != '\0' && isa_name(isa) != forced) continue;
      if (is_supported(isa)) return isa;
    }
    throw ConfigurationError(std::string("VSR_FORCE_ISA=") + forced +
                             ": got an instruction set that is unknown or that this machine lacks, "
                             "expected scalar, avx2 or avx512; unset it to use the best one");
  }();
  return chosen;
}

Census sum_leaves(const SumLeaves& sweep, Isa isa) {
  const std::size_t elements = sweep.block_norms.size() * comm::kBlockElements;
  const Sources slices(sweep.slices, elements * element_bytes(sweep.dtype));
  VSR_CHECK(sweep.accumulator.empty() || sweep.accumulator.size() == elements,
            "the accumulator has another length than the block norms say");
  VSR_CHECK(sweep.norm != Norm::power || sweep.power > 0.0, "a p-norm needs p above 0");
  VSR_CHECK(!sweep.accumulate || !sweep.accumulator.empty() || elements == 0,
            "accumulate needs an accumulator");
  const detail::Counts counts =
      table(isa).sum_leaves({type_of(sweep.dtype),
                             {slices.begin(), static_cast<int>(sweep.slices.size())},
                             static_cast<std::int64_t>(sweep.block_norms.size()),
                             sweep.accumulator.empty() ? nullptr : sweep.accumulator.data(),
                             sweep.accumulate,
                             static_cast<detail::NormKind>(sweep.norm),
                             sweep.power,
                             sweep.block_norms.data()});
  return {counts.inf_count, counts.nan_count, counts.first_element, counts.first_slice};
}

void add_rounded(Dtype dtype, std::span<const std::span<const std::byte>> slices,
                 std::span<std::byte> sum, Isa isa) {
  VSR_CHECK(!slices.empty(), "there is nothing to add");
  const Sources sources(slices, sum.size());
  table(isa).add_rounded(type_of(dtype), {sources.begin(), static_cast<int>(slices.size())},
                         reinterpret_cast<unsigned char*>(sum.data()),
                         static_cast<std::int64_t>(sum.size() / element_bytes(dtype)));
}

void round_to(Dtype dtype, std::span<const float> values, std::span<std::byte> rounded, Isa isa) {
  VSR_CHECK(rounded.size() == values.size() * element_bytes(dtype),
            "the rounded values need another number of bytes than given");
  table(isa).round_to(type_of(dtype), values.data(),
                      reinterpret_cast<unsigned char*>(rounded.data()),
                      static_cast<std::int64_t>(values.size()));
}

void widen(Dtype dtype, std::span<const std::byte> values, std::span<float> widened, Isa isa) {
  VSR_CHECK(values.size() == widened.size() * element_bytes(dtype),
            "the widened values have another number of elements than given");
  table(isa).widen(type_of(dtype), reinterpret_cast<const unsigned char*>(values.data()),
                   widened.data(), static_cast<std::int64_t>(widened.size()));
}

double fold_blocks(Norm norm, double power, std::span<const double> block_norms) noexcept {
  double total = 0.0;
  for (const double block : block_norms)
    total = norm == Norm::infinity ? (block > total ? block : total) : total + block;
  if (norm == Norm::power) return std::pow(total, 1.0 / power);
  return norm == Norm::two ? std::sqrt(total) : total;
}

}  // namespace vsr::optim
