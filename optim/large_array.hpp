// SPDX-License-Identifier: Apache-2.0
// Memory for the shard's masters, moments and sums: zeroed, page aligned, on huge pages where the
// system gives them, because each step streams through all of it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace vsr::optim {

/// Room for `elements` values in an empty vector, on huge pages where the system gives them: a copy
/// of a shard is then filled without a fault for each small page, which takes longer than the copy.
/// @throws std::bad_alloc
template <typename T>
void reserve_large(std::vector<T>& values, std::size_t elements) {
  constexpr std::uintptr_t kHugePageBytes = std::uintptr_t{2} << 20;
  values.reserve(elements);
  const auto begin = reinterpret_cast<std::uintptr_t>(values.data());
  const std::uintptr_t first = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const std::uintptr_t last = (begin + elements * sizeof(T)) / kHugePageBytes * kHugePageBytes;
  // Advice only, and only for whole huge pages: small room shares its pages with others.
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

/// `elements` zeroed values of a plain type.
template <typename T>
class LargeArray {
 public:
  LargeArray() = default;
  /// @throws std::bad_alloc
  explicit LargeArray(std::size_t elements) {
    if (elements == 0) return;
    void* memory = mmap(nullptr, elements * sizeof(T), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, elements * sizeof(T), MADV_HUGEPAGE);
    values_ = {static_cast<T*>(memory), elements};
  }
  LargeArray(LargeArray&& other) noexcept : values_(std::exchange(other.values_, {})) {}
  LargeArray& operator=(LargeArray&& other) noexcept {
    std::swap(values_, other.values_);
    return *this;
  }
  LargeArray(const LargeArray&) = delete;
  LargeArray& operator=(const LargeArray&) = delete;
  ~LargeArray() {
    if (!values_.empty()) munmap(values_.data(), values_.size_bytes());
  }

  std::span<T> span() const noexcept { return values_; }

 private:
  std::span<T> values_;
};

}  // namespace vsr::optim
