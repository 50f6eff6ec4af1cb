// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_plan.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace vsr::comm {

DevicePlan plan_devices(Communicator& world, const VisibleDevices& mine) {
  const std::span<const int> node = world.node_ranks();
  const auto place = static_cast<int>(std::ranges::find(node, world.rank()) - node.begin());
  DevicePlan plan;
  if (mine.count > 0) plan.index = mine.count == 1 ? 0 : place;
  std::string why;
  if (mine.count == 0) {
    why = mine.reason.empty() ? "no GPU" : "no GPU: " + mine.reason;
  } else if (mine.count > 1 && place >= mine.count) {
    why = std::to_string(node.size()) + " ranks and " + std::to_string(mine.count) + " GPUs on " +
          world.host();
  }
  const std::vector<std::string> all = world.all_gather_strings(why);
  for (std::size_t rank = 0; rank < all.size() && plan.reason.empty(); ++rank)
    if (!all[rank].empty()) plan.reason = "rank " + std::to_string(rank) + " has " + all[rank];
  if (!plan.reason.empty()) plan.index = -1;
  return plan;
}

}  // namespace vsr::comm
