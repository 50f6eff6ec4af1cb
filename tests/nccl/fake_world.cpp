// SPDX-License-Identifier: Apache-2.0
// Lets test programs of the MPI backend run on the NCCL backend over the fake instead.
#include "comm/nccl_communicator.hpp"
#include "tests/support/fake_nccl.hpp"
#include "tests/support/mpi_world.hpp"

namespace vsr::test {

std::shared_ptr<comm::Communicator> make_world() {
  const int rank = comm::make_communicator(comm::Backend::mpi)->rank();
  auto device = std::make_unique<FakeDevice>("GPU-fake-" + std::to_string(rank));
  auto nccl = std::make_shared<FakeNccl>(*device);
  auto* const world = new comm::NcclCommunicator(std::move(device), nccl->functions());
  return {world, [nccl](const comm::NcclCommunicator* made) { delete made; }};
}

}  // namespace vsr::test
