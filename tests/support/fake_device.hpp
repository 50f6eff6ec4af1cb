// SPDX-License-Identifier: Apache-2.0
// A device in host memory that is as late as a real one may be: work put on a stream runs only when
// somebody asks for a mark behind it, so an order that was not asked for shows as wrong data.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "comm/device/device.hpp"

namespace vsr::test {

/// Work that may take several looks: true when it is over. The first look starts it.
using FakeWork = std::function<bool()>;

class FakeDevice final : public comm::Device {
 public:
  explicit FakeDevice(std::string uuid);
  ~FakeDevice() override;

  std::string name() const override { return "Fake GPU"; }
  std::string uuid() const override { return uuid_; }
  bool is_host_accessible() const noexcept override { return true; }
  void make_current() override {}
  std::byte* allocate(std::size_t bytes) override;
  void free(std::byte* memory) noexcept override;
  comm::DeviceStream work_stream() const noexcept override { return work_stream_; }
  comm::DeviceStream make_stream() override;
  void destroy(comm::DeviceStream stream) noexcept override;
  comm::DeviceEvent make_event() override;
  void destroy(comm::DeviceEvent event) noexcept override;
  void record(comm::DeviceEvent event, comm::DeviceStream stream) override;
  void wait(comm::DeviceStream stream, comm::DeviceEvent event) override;
  bool is_done(comm::DeviceEvent event) override;
  void copy(std::span<const std::byte> from, std::span<std::byte> to,
            comm::DeviceStream stream) override;

  /// Put work on a stream, as a kernel is.
  void put(comm::DeviceStream stream, FakeWork work);
  /// Do all that lies on a stream, as a user's synchronisation does.
  void drain(comm::DeviceStream stream);
  /// Whether all of the bytes are memory of this device.
  bool holds(const void* begin, std::size_t bytes) const;
  /// Streams, events and pieces of memory that were given out and not taken back; the work stream
  /// does not count.
  std::size_t live_handles() const noexcept;

 private:
  struct Stream;
  struct Event;
  static Stream& of(comm::DeviceStream stream);
  static Event& of(comm::DeviceEvent event);
  static bool advance(Stream& stream, std::uint64_t position);

  std::string uuid_;
  std::map<const std::byte*, std::size_t> memory_;
  std::size_t streams_ = 0;
  std::size_t events_ = 0;
  comm::DeviceStream work_stream_ = nullptr;
};

}  // namespace vsr::test
