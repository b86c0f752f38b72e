// SPDX-License-Identifier: Apache-2.0
// Run by mpirun: every mesh of the job's ranks over rows of the design, against the fp64 oracle and bit for
// bit against the same case on threads. Exits nonzero on the first difference.
#include "runtime_trial.hpp"

#include "usp/base/digest.hpp"
#include "usp/comm/mpi.hpp"
#include "usp/comm/threads.hpp"

#include <cstdio>
#include <stdexcept>
#include <string>

namespace usp::test {
namespace {

[[nodiscard]] std::uint64_t digest_of(const std::vector<std::byte>& bits) {
  return Digest().bytes({reinterpret_cast<const char*>(bits.data()), bits.size()}).value();
}

void require(bool holds, const std::string& what, const RuntimeCase& c) {
  if (!holds) throw std::runtime_error(what + ": " + describe(c));
}

void run_case(const RuntimeCase& c, comm::Communicator& comm, double tolerance) {
  const auto kernel = kernels::make_cpu_kernel();
  const TrialErrors e = run_trial(c, comm, *kernel, {.debug_nan = true});
  require(e.worst() <= tolerance, "error " + std::to_string(e.worst()), c);
  require(e.rows.empty(), e.rows, c);
  require(e.bytes.empty(), e.bytes, c);
  const std::uint64_t mine = digest_of(e.bits);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(comm.size())), threads(all.size());
  comm.all_gather(&mine, all.data(), sizeof mine);
  if (comm.rank() != 0) return;
  comm::run_threads(comm.size(), {}, [&](comm::Communicator& thread) {
    const auto other = kernels::make_cpu_kernel();
    threads[static_cast<std::size_t>(thread.rank())] =
        digest_of(run_trial(c, thread, *other, {}, false).bits);
  });
  require(all == threads, "MPI and threads differ in bits", c);
}

void run_all(comm::Communicator& comm) {
  const auto rows = pairwise(Factors::levels(), 7);
  const std::pair<DType, double> types[] = {{DType::fp64, 1e-10}, {DType::fp32, 1e-5}, {DType::bf16, 1e-2}};
  std::size_t cases = 0;
  for (int ring = 1; ring <= comm.size(); ++ring) {
    if (comm.size() % ring != 0) continue;
    for (std::size_t i = 0; i < rows.size(); ++i, ++cases) {
      const auto& [dtype, tolerance] = types[i % 3];
      run_case(make_case(rows[i], ring, comm.size() / ring, dtype, 300 + i), comm, tolerance);
    }
  }
  if (comm.rank() == 0) std::printf("%zu cases on %d ranks\n", cases, comm.size());
}

}  // namespace
}  // namespace usp::test

int main() {
  return usp::comm::run_mpi({30, std::int64_t{1} << 30}, usp::test::run_all);
}
