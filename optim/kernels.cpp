// SPDX-License-Identifier: Apache-2.0
// Checks lengths, chooses the instruction set, and hands plain pointers to the compiled loops.
#include "optim/kernels.hpp"

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/error.hpp"
#include "optim/kernel_table.hpp"

namespace vsr::optim {
namespace {

const detail::KernelTable& table(Isa isa) {
#if defined(VSR_X86_KERNELS)
  if (isa == Isa::avx512) return detail::kAvx512Kernels;
  if (isa == Isa::avx2) return detail::kAvx2Kernels;
#endif
  VSR_CHECK(isa == Isa::scalar, "this build holds only the scalar kernels");
  return detail::kScalarKernels;
}

detail::Type type_of(Dtype dtype) {
  return static_cast<detail::Type>(dtype);
}

// Pointers of a handful of spans without touching the heap: the sweeps run once per parameter.
template <typename Pointer, typename Span>
class Pointers {
 public:
  Pointers(std::span<const Span> spans, std::size_t size_bytes) {
    const bool is_small = spans.size() <= few_.size();
    if (!is_small) many_.resize(spans.size());
    begin_ = is_small ? few_.data() : many_.data();
    for (std::size_t i = 0; i < spans.size(); ++i) {
      VSR_CHECK(spans[i].size() == size_bytes,
                "span " + std::to_string(i) + " has " + std::to_string(spans[i].size()) +
                    " bytes, expected " + std::to_string(size_bytes));
      begin_[i] = reinterpret_cast<Pointer>(spans[i].data());
    }
  }
  Pointers(const Pointers&) = delete;
  Pointers& operator=(const Pointers&) = delete;
  Pointer const* begin() const noexcept { return begin_; }

 private:
  std::array<Pointer, 16> few_ = {};
  std::vector<Pointer> many_;
  Pointer* begin_ = nullptr;
};

using Sources = Pointers<const unsigned char*, std::span<const std::byte>>;
using Places = Pointers<unsigned char*, std::span<std::byte>>;

}  // namespace

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
  VSR_CHECK(!sweep.accumulate || !sweep.accumulator.empty() || elements == 0,
            "accumulate needs an accumulator");
  const detail::Counts counts =
      table(isa).sum_leaves({type_of(sweep.dtype),
                             {slices.begin(), static_cast<int>(sweep.slices.size())},
                             static_cast<std::int64_t>(sweep.block_norms.size()),
                             sweep.accumulator.empty() ? nullptr : sweep.accumulator.data(),
                             sweep.accumulate,
                             static_cast<detail::NormKind>(sweep.norm),
                             sweep.block_norms.data()});
  return {counts.inf_count, counts.nan_count, counts.first_element, counts.first_slice};
}

void update_shard(const UpdateShard& sweep, Isa isa) {
  const std::size_t elements = sweep.master.size();
  const Sources slices(sweep.slices, elements * element_bytes(sweep.dtype));
  const Places targets(sweep.destinations, elements * element_bytes(sweep.dtype));
  VSR_CHECK(sweep.exp_avg.size() == elements && sweep.exp_avg_sq.size() == elements,
            "moments and masters have different lengths");
  VSR_CHECK(sweep.sums.empty() || sweep.sums.size() == elements,
            "sums and masters have different lengths");
  VSR_CHECK(0 <= sweep.piece.begin && sweep.piece.begin <= sweep.piece.end &&
                sweep.piece.end <= static_cast<std::int64_t>(elements),
            "the piece lies outside the shard");
  table(isa).update_shard({type_of(sweep.dtype),
                           sweep.piece.begin,
                           sweep.piece.end,
                           {slices.begin(), static_cast<int>(sweep.slices.size())},
                           sweep.sums.empty() ? nullptr : sweep.sums.data(),
                           sweep.factor,
                           sweep.decay,
                           sweep.coefficients,
                           sweep.master.data(),
                           sweep.exp_avg.data(),
                           sweep.exp_avg_sq.data(),
                           {targets.begin(), static_cast<int>(sweep.destinations.size())}});
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
  VSR_CHECK(rounded.size() == values.size() * element_bytes(dtype), "lengths differ");
  table(isa).round_to(type_of(dtype), values.data(),
                      reinterpret_cast<unsigned char*>(rounded.data()),
                      static_cast<std::int64_t>(values.size()));
}

void widen(Dtype dtype, std::span<const std::byte> values, std::span<float> widened, Isa isa) {
  VSR_CHECK(values.size() == widened.size() * element_bytes(dtype), "lengths differ");
  table(isa).widen(type_of(dtype), reinterpret_cast<const unsigned char*>(values.data()),
                   widened.data(), static_cast<std::int64_t>(widened.size()));
}

double fold_blocks(Norm norm, std::span<const double> block_norms) noexcept {
  double total = 0.0;
  for (const double block : block_norms)
    total = norm == Norm::infinity ? (block > total ? block : total) : total + block;
  return norm == Norm::two ? std::sqrt(total) : total;
}

}  // namespace vsr::optim
