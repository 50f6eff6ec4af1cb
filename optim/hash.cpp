// SPDX-License-Identifier: Apache-2.0
#include "optim/hash.hpp"

#include <xxhash.h>

#include <new>

namespace vsr::optim {

struct Xxh3Stream::State {
  XXH3_state_t* handle = XXH3_createState();
  State() {
    if (handle == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(handle);
  }
  ~State() { XXH3_freeState(handle); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

std::uint64_t xxh3_64(std::span<const std::byte> data) noexcept {
  return XXH3_64bits(data.data(), data.size());
}

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {}
Xxh3Stream::~Xxh3Stream() = default;

void Xxh3Stream::update(std::span<const std::byte> data) noexcept {
  XXH3_128bits_update(state_->handle, data.data(), data.size());
}

std::string Xxh3Stream::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_->handle));
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace vsr::optim
