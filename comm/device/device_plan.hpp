// SPDX-License-Identifier: Apache-2.0
// Which rank drives which GPU.
#pragma once

#include <string>

#include "comm/communicator.hpp"
#include "comm/device/device.hpp"

namespace vsr::comm {

/// What was found out, for choosing a backend.
struct DevicePlan {
  int index = -1;      ///< of this rank's device among those it sees; -1: none
  std::string reason;  ///< why not every rank has one of its own; empty when all have; equal on all
};
/// Collective. A rank takes the device of its place on its node; the only one where it sees only
/// one.
DevicePlan plan_devices(Communicator& world, const VisibleDevices& mine);

}  // namespace vsr::comm
