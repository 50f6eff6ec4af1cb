// SPDX-License-Identifier: Apache-2.0
// XXH3 of memory, so that two runs or two replicas can be compared by one short word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace vsr::optim {

/// XXH3-64 of `data`.
std::uint64_t xxh3_64(std::span<const std::byte> data) noexcept;
/// XXH3-64 of the bytes of `text`.
inline std::uint64_t xxh3_64_of_text(std::string_view text) noexcept {
  return xxh3_64(std::as_bytes(std::span(text)));
}

/// XXH3-128 of data that comes in parts.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;
  void update(std::span<const std::byte> data) noexcept;
  /// Canonical (big-endian) form of all data so far, 32 lower-case hex digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vsr::optim
