// SPDX-License-Identifier: Apache-2.0
// In a file of its own, so that a program which defines it otherwise does not link this one.
#include "tests/support/mpi_world.hpp"

namespace vsr::test {

std::shared_ptr<comm::Communicator> make_world() {
  return comm::make_communicator(comm::Backend::mpi);
}

}  // namespace vsr::test
