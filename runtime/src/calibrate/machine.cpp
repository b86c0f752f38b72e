// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <sched.h>
#include <thread>
#include <unistd.h>

namespace usp::measure {
namespace {

struct HostReport {
  std::array<char, 256> name{};
  std::array<char, 64> boot{};  ///< of the kernel that hosts of one machine share; empty: not known
  cpu_set_t cores{};
  double memory_bytes = 0;
  std::int64_t cache_bytes = 0;
};

/// "32768K" of the highest level that the first core has.
std::int64_t last_cache_bytes() {
  constexpr std::int64_t guess = std::int64_t{64} << 20;
  std::int64_t most = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    std::int64_t count = 0;
    char unit = 0;
    if (!(file >> count)) continue;
    file >> unit;
    most = std::max(most, count << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0));
  }
  return most > 0 ? most : guess;
}

void read_boot(std::array<char, 64>& boot) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  if (std::getline(file, text)) text.copy(boot.data(), boot.size() - 1);
}

std::vector<bool> with_own_cores(const std::vector<HostReport>& ranks) {
  struct Cores {
    cpu_set_t set{};
    int taken = 0;
  };
  const auto key = [](const HostReport& report) {
    return report.boot[0] == 0 ? report.name.data() : report.boot.data();
  };
  std::map<std::string, Cores> machines;
  for (const HostReport& report : ranks) {
    cpu_set_t& all = machines[key(report)].set;
    CPU_OR(&all, &all, &report.cores);
  }
  std::vector<bool> own;
  for (const HostReport& report : ranks) {
    Cores& cores = machines[key(report)];
    const int known = CPU_COUNT(&cores.set);
    const int count = known > 0 ? known : static_cast<int>(std::thread::hardware_concurrency());
    own.push_back(cores.taken++ < std::max(1, count));
  }
  return own;
}

}  // namespace

int Machine::ranks_per_host() const {
  std::size_t least = ranks.front().size();
  for (const std::vector<int>& of : ranks) least = std::min(least, of.size());
  return static_cast<int>(least);
}

int Machine::local(int rank) const {
  const std::vector<int>& of = ranks[static_cast<std::size_t>(host_of[static_cast<std::size_t>(rank)])];
  return static_cast<int>(std::find(of.begin(), of.end(), rank) - of.begin());
}

Machine machine_of(comm::Communicator& control) {
  HostReport mine;
  if (::gethostname(mine.name.data(), mine.name.size() - 1) != 0)
    throw EnvironmentError(
        "the name of this host is not known, by which ranks of other hosts are told apart");
  read_boot(mine.boot);
  if (::sched_getaffinity(0, sizeof mine.cores, &mine.cores) != 0)
    CPU_ZERO(&mine.cores);  // more cores than the set has room for
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGE_SIZE);
  mine.memory_bytes = static_cast<double>(std::max(pages, 1L)) * static_cast<double>(std::max(page, 1L));
  mine.cache_bytes = last_cache_bytes();
  std::vector<HostReport> all(static_cast<std::size_t>(control.size()));
  control.all_gather(&mine, all.data(), sizeof mine);
  Machine machine;
  machine.own_core = with_own_cores(all);
  for (int rank = 0; rank < control.size(); ++rank) {
    const HostReport& report = all[static_cast<std::size_t>(rank)];
    machine.cache_bytes = std::max(machine.cache_bytes, report.cache_bytes);
    const std::string name = report.name.data();
    const auto known = std::find(machine.hosts.begin(), machine.hosts.end(), name);
    const auto host = static_cast<std::size_t>(known - machine.hosts.begin());
    if (known == machine.hosts.end()) {
      machine.hosts.push_back(name);
      machine.ranks.emplace_back();
      machine.memory_bytes.push_back(report.memory_bytes);
    }
    machine.ranks[host].push_back(rank);
    machine.host_of.push_back(static_cast<int>(host));
  }
  return machine;
}

}  // namespace usp::measure
