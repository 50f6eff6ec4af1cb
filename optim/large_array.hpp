// SPDX-License-Identifier: Apache-2.0
// Memory for the shard's masters, moments and sums: zeroed, page aligned, on huge pages where the
// system gives them, because each step streams through all of it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <span>
#include <utility>

namespace vsr::optim {

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
