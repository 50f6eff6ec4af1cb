// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_device.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "comm/error.hpp"

namespace vsr::test {

struct FakeDevice::Stream {
  std::deque<FakeWork> work;
  std::uint64_t put = 0;   // pieces of work so far
  std::uint64_t done = 0;  // of them, over
};

struct FakeDevice::Event {
  std::shared_ptr<Stream> stream;  // null: never recorded, and so done
  std::uint64_t position = 0;
};

FakeDevice::Stream& FakeDevice::of(comm::DeviceStream stream) {
  VSR_CHECK(stream != nullptr, "a null stream");
  return **reinterpret_cast<std::shared_ptr<Stream>*>(stream);
}

FakeDevice::Event& FakeDevice::of(comm::DeviceEvent event) {
  VSR_CHECK(event != nullptr, "a null event");
  return *reinterpret_cast<Event*>(event);
}

FakeDevice::FakeDevice(std::string uuid) : uuid_(std::move(uuid)) {
  work_stream_ = make_stream();
}

FakeDevice::~FakeDevice() {
  destroy(work_stream_);
  for (const auto& [begin, bytes] : memory_) std::free(const_cast<std::byte*>(begin));
}

std::byte* FakeDevice::allocate(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  void* const memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (memory == nullptr) throw CudaError("the fake device has no room");
  std::memset(memory, 0, bytes);
  memory_[static_cast<std::byte*>(memory)] = bytes;
  return static_cast<std::byte*>(memory);
}

void FakeDevice::free(std::byte* memory) noexcept {
  memory_.erase(memory);
  std::free(memory);
}

comm::DeviceStream FakeDevice::make_stream() {
  ++streams_;
  return reinterpret_cast<comm::DeviceStream>(
      new std::shared_ptr<Stream>(std::make_shared<Stream>()));
}

void FakeDevice::destroy(comm::DeviceStream stream) noexcept {
  --streams_;
  delete reinterpret_cast<std::shared_ptr<Stream>*>(stream);
}

comm::DeviceEvent FakeDevice::make_event() {
  ++events_;
  return reinterpret_cast<comm::DeviceEvent>(new Event);
}

void FakeDevice::destroy(comm::DeviceEvent event) noexcept {
  --events_;
  delete reinterpret_cast<Event*>(event);
}

void FakeDevice::record(comm::DeviceEvent event, comm::DeviceStream stream) {
  of(event).stream = *reinterpret_cast<std::shared_ptr<Stream>*>(stream);
  of(event).position = of(stream).put;
}

void FakeDevice::wait(comm::DeviceStream stream, comm::DeviceEvent event) {
  const Event now = of(event);  // a later record does not count
  if (!now.stream) return;
  put(stream, [now] { return advance(*now.stream, now.position); });
}

bool FakeDevice::advance(Stream& stream, std::uint64_t position) {
  while (stream.done < position) {
    if (!stream.work.front()()) return false;
    stream.work.pop_front();
    ++stream.done;
  }
  return true;
}

bool FakeDevice::is_done(comm::DeviceEvent event) {
  Event& asked = of(event);
  return !asked.stream || advance(*asked.stream, asked.position);
}

void FakeDevice::put(comm::DeviceStream stream, FakeWork work) {
  of(stream).work.push_back(std::move(work));
  ++of(stream).put;
}

void FakeDevice::drain(comm::DeviceStream stream) {
  while (!advance(of(stream), of(stream).put)) {
  }
}

void FakeDevice::copy(std::span<const std::byte> from, std::span<std::byte> to,
                      comm::DeviceStream stream) {
  VSR_CHECK(from.size() == to.size(), "a copy between spans of different lengths");
  VSR_CHECK(holds(from.data(), from.size()) && holds(to.data(), to.size()),
            "a copy of memory that is not the device's");
  put(stream, [from, to] {
    std::memmove(to.data(), from.data(), from.size());
    return true;
  });
}

bool FakeDevice::holds(const void* begin, std::size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(begin);
  auto after = memory_.upper_bound(first);
  if (after == memory_.begin()) return false;
  --after;
  return first + bytes <= after->first + after->second;
}

std::size_t FakeDevice::live_handles() const noexcept {
  return memory_.size() + (streams_ - 1) + events_;
}

}  // namespace vsr::test
