// SPDX-License-Identifier: Apache-2.0
// What a device counts while it adds leaves. C++17, because nvcc reads it.
#pragma once

namespace vsr::optim {

/// A census as it lies in device memory: all zero bytes say that nothing was found.
struct CensusRecord {
  unsigned long long inf_count = 0;
  unsigned long long nan_count = 0;
  /// 0, or the complement of (element × 65536 + slice): the largest one is the first value.
  unsigned long long first = 0;
};

}  // namespace vsr::optim
