// SPDX-License-Identifier: Apache-2.0
// One communicator for all cases of a test program under mpirun, so that a case does not have to
// make its own.
#pragma once

#include "comm/communicator.hpp"

namespace vsr::test {

/// The communicator of this test program; made in `main`, the same order of calls on all ranks.
comm::Communicator& world();

}  // namespace vsr::test
