// SPDX-License-Identifier: Apache-2.0
// One owner for a foreign handle. The close function is part of the type through a traits struct
// because handles of different libraries share a representation (an int, a pointer) and some null
// values are no constant expressions.
#pragma once

#include <utility>

namespace vsr::comm {

/// Owns a handle and closes it once.
/// `Traits` has `using Type`, `static Type null() noexcept` and `static void close(Type) noexcept`.
template <typename Traits>
class UniqueHandle {
 public:
  using Type = typename Traits::Type;

  UniqueHandle() noexcept : handle_(Traits::null()) {}
  explicit UniqueHandle(Type handle) noexcept : handle_(handle) {}
  UniqueHandle(UniqueHandle&& other) noexcept : handle_(other.release()) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;
  ~UniqueHandle() {
    if (*this) Traits::close(handle_);
  }

  explicit operator bool() const noexcept { return handle_ != Traits::null(); }
  /// The handle, still owned here.
  Type get() const noexcept { return handle_; }
  /// Give up ownership.
  Type release() noexcept { return std::exchange(handle_, Traits::null()); }

 private:
  Type handle_;
};

}  // namespace vsr::comm
