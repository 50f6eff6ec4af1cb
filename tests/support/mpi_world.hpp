// SPDX-License-Identifier: Apache-2.0
// One communicator for all cases of a test program under mpirun, so that a case does not have to
// make its own.
#pragma once

#include "comm/communicator.hpp"

namespace vsr::test {

/// The communicator of this test program; made in `main`, the same order of calls on all ranks.
comm::Communicator& world();

/// What `main` makes it by: the MPI backend, unless the program brings a definition of its own.
std::shared_ptr<comm::Communicator> make_world();

}  // namespace vsr::test
