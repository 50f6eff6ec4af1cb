// SPDX-License-Identifier: Apache-2.0
// Finding what a misspelt name was meant to be, with the edit distance that counts a swap of
// neighbours as one mistake, since that is the commonest slip of fingers.
#include <algorithm>
#include <cstddef>

#include "launch/options.hpp"

namespace vsr::launch {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_distance = 0;
  for (const auto& candidate : candidates) {
    const auto distance = edit_distance(name, candidate);
    const auto longer = std::max(name.size(), candidate.size());
    const auto allowed = std::max<std::size_t>(1, longer / 3);
    if (distance <= allowed && distance < longer && (best.empty() || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty() || name.size() < 2) return best;
  for (const auto& candidate : candidates)
    if (candidate.size() > name.size() && candidate.compare(0, name.size(), name) == 0)
      return candidate;
  return best;
}

}  // namespace vsr::launch
