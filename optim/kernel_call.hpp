// SPDX-License-Identifier: Apache-2.0
// From checked spans to the plain pointers of the compiled loops. Private to the kernels.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "comm/error.hpp"
#include "optim/kernel_table.hpp"
#include "optim/kernels.hpp"

namespace vsr::optim::detail {

inline const KernelTable& table(Isa isa) {
#if defined(VSR_X86_KERNELS)
  if (isa == Isa::avx512) return kAvx512Kernels;
  if (isa == Isa::avx2) return kAvx2Kernels;
#endif
  VSR_CHECK(isa == Isa::scalar, "this build holds only the scalar kernels");
  return kScalarKernels;
}

inline Type type_of(Dtype dtype) {
  return static_cast<Type>(dtype);
}

/// Pointers of a handful of spans without touching the heap: the sweeps run once per parameter.
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

}  // namespace vsr::optim::detail
