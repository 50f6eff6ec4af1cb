// SPDX-License-Identifier: Apache-2.0
// The few calls that NCCL's user needs from a GPU, as an interface: the CUDA runtime implements it,
// and tests replace it by host memory. Free of CUDA headers.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "comm/unique_handle.hpp"

namespace vsr::comm {

struct DeviceStreamTag;
struct DeviceEventTag;
/// A queue of work that runs in order; the CUDA stream behind it, as a pointer.
using DeviceStream = DeviceStreamTag*;
/// A mark in such a queue.
using DeviceEvent = DeviceEventTag*;

/// One GPU, as the rank that drives it sees it. Errors of every call: CudaError naming the
/// device and what the runtime says. All calls are local and from the thread that made the device
/// current.
class Device {
 public:
  virtual ~Device() = default;

  /// "NVIDIA H200 (device 3)".
  virtual std::string name() const = 0;
  /// Tells two GPUs apart, on all hosts.
  virtual std::string uuid() const = 0;
  /// Whether the host may read and write its memory in place.
  virtual bool is_host_accessible() const noexcept = 0;
  /// Let the calls of this thread go to this device.
  virtual void make_current() = 0;

  /// Zeroed memory.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* memory) noexcept = 0;
  /// Where those who use bulk memory put their work: collectives come after what is on it, and what
  /// is put there later comes after them.
  virtual DeviceStream work_stream() const noexcept = 0;
  virtual DeviceStream make_stream() = 0;
  virtual void destroy(DeviceStream stream) noexcept = 0;
  virtual DeviceEvent make_event() = 0;
  virtual void destroy(DeviceEvent event) noexcept = 0;
  /// Put the mark behind all that is on `stream` now.
  virtual void record(DeviceEvent event, DeviceStream stream) = 0;
  /// What is put on `stream` from now on waits for the mark. Does not wait here.
  virtual void wait(DeviceStream stream, DeviceEvent event) = 0;
  /// Whether the mark was passed. Never waits.
  virtual bool is_done(DeviceEvent event) = 0;
  /// Copy within the memory of the device, ordered on `stream`; equal sizes.
  virtual void copy(std::span<const std::byte> from, std::span<std::byte> to,
                    DeviceStream stream) = 0;
};

/// Owners of what a Device, which outlives them, gave out.
class OwnedStream {
 public:
  explicit OwnedStream(Device& device) : device_(device), stream_(device.make_stream()) {}
  ~OwnedStream() { device_.destroy(stream_); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  DeviceStream get() const noexcept { return stream_; }

 private:
  Device& device_;
  DeviceStream stream_;
};

class OwnedEvent {
 public:
  explicit OwnedEvent(Device& device) : device_(device), event_(device.make_event()) {}
  ~OwnedEvent() { device_.destroy(event_); }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  DeviceEvent get() const noexcept { return event_; }

 private:
  Device& device_;
  DeviceEvent event_;
};

/// The GPUs that this process may use, by the CUDA runtime.
struct VisibleDevices {
  int count = 0;
  std::string reason;  ///< why there are none
};
/// Never throws for lack of a device, a driver or CUDA in this build. Local.
VisibleDevices find_devices();
/// The device `index` of those. Local.
/// @throws NotCompiled in a build without CUDA; CudaError
std::unique_ptr<Device> open_device(int index);

}  // namespace vsr::comm
