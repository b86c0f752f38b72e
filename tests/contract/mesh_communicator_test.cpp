// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/mesh_communicator.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace usp::test {
namespace {

/// Sums along an axis reach the ranks of that axis alone, in the order of ring rows and ulysses columns.
TEST(MeshCommunicator, GroupsAreTheAxes) {
  for (const auto& [ring, ulysses] : {std::pair(2, 3), std::pair(3, 2), std::pair(1, 4), std::pair(4, 1)}) {
    const Mesh mesh{1, ring, ulysses};
    comm::run_threads(mesh.size(), comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& comm) {
      comm::MeshCommunicator ranks(comm, mesh);
      const int row = mesh.ring_of(comm.rank()), column = mesh.ulysses_of(comm.rank());
      EXPECT_EQ(&ranks.data_plane().control(), &comm);
      EXPECT_EQ(ranks.ring().size(), mesh.ring());
      EXPECT_EQ(ranks.ring().rank(), row);
      EXPECT_EQ(ranks.ulysses().size(), mesh.ulysses);
      EXPECT_EQ(ranks.ulysses().rank(), column);
      i64 along_ring = comm.rank(), along_ulysses = comm.rank(), expected_ring = 0, expected_ulysses = 0;
      for (int r = 0; r < mesh.ring(); ++r) expected_ring += mesh.rank(r, column);
      for (int u = 0; u < mesh.ulysses; ++u) expected_ulysses += mesh.rank(row, u);
      ranks.ring().all_reduce_sum(&along_ring, 1);
      ranks.ulysses().all_reduce_sum(&along_ulysses, 1);
      EXPECT_EQ(along_ring, expected_ring);
      EXPECT_EQ(along_ulysses, expected_ulysses);
    });
  }
}

TEST(MeshCommunicator, OfAnotherCountOfRanksIsRefused) {
  const auto one = comm::make_serial_communicator();
  EXPECT_THROW(comm::MeshCommunicator(*one, Mesh{1, 2, 1}), UsageError);
}

TEST(MeshCommunicator, AnAbortEndsEveryRank) {
  const Mesh mesh{1, 2, 2};
  EXPECT_THROW(comm::run_threads(mesh.size(), comm::CommOptions{20, i64{1} << 30},
                                 [&](comm::Communicator& comm) {
                                   comm::MeshCommunicator ranks(comm, mesh);
                                   if (comm.rank() == 2) {
                                     comm::CommunicationFault fault;
                                     fault.message = "rank 2 has lost its GPU";
                                     ranks.abort(fault);
                                   }
                                   ranks.world().barrier();
                                 }),
               comm::CommunicationError);
}

}  // namespace
}  // namespace usp::test
