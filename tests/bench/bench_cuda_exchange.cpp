// SPDX-License-Identifier: Apache-2.0
// The Ulysses exchange with its change of layout, by copy engines, beside a plain copy between the same ranks
// of as many bytes, in turns:
//   bench_cuda_exchange [RANKS [ROUNDS [MIB_PER_PEER...]]] [--push] [--json]
// There: [tokens / ranks][heads][head_dim] at home to [tokens][heads / ranks][head_dim]; strided at the
// source, in runs of heads / ranks * head_dim * 2 bytes. Back: strided at the target. Ranks are threads of
// this process, or processes where mpirun or torchrun started them; they take the GPUs there are, in turn.
// Receivers pull, or with --push senders push. The plain copy is cudaMemcpyAsync between two buffers, or a
// region without strides through the same data plane between processes. All ranks send to all others at once;
// what a rank keeps is neither moved nor counted. Times are the slowest rank's, by its stream's events, from
// a point that all ranks' streams have reached; `late` counts the rounds in which a rank's GPU got there
// before its host had enqueued all, so that the host's time may be in them.
#include "device_noise.hpp"
#include "gpu_rank.hpp"
#include "median.hpp"
#include "options.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/device/check.cuda.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

namespace usp::bench {
namespace {

constexpr i64 mib = i64{1} << 20;
constexpr i64 flush_bytes = 512 * mib;
constexpr int warm_up = 3;

struct Job {
  int ranks = 2, rounds = 15;
  std::vector<i64> payloads;  ///< bytes from each rank to each
  bool push = false;
  bool json = false;
};

struct Size {
  i64 run_bytes, payload;
  [[nodiscard]] i64 rows() const { return payload / run_bytes; }  ///< of one rank
};

struct Time {
  double seconds = 0;
  int late = 0;  ///< 1: the GPU began before the host had enqueued all, so that host time may be in it
};

/// Times of some rounds.
struct Times {
  std::vector<double> seconds;
  int late = 0;
  void add(const Time& t) {
    seconds.push_back(t.seconds);
    late += t.late;
  }
};

enum class Way : std::uint8_t { there, back, plain };

/// One rank's tensors, and its end of the exchange.
class Rank {
 public:
  Rank(const Job& job, comm::Communicator& control)
      : control_(control), push_(job.push), gpu_(control), flush_(gpu_.stream.device(), flush_bytes) {
    const int device = gpu_.stream.device();
    bytes_ = job.ranks * *std::max_element(job.payloads.begin(), job.payloads.end());
    kernels::Arena& arena = *gpu_.data_plane->peer_arena(*gpu_.memory);
    arena.reserve(3 * bytes_ + 2 * job.ranks);
    home_ = arena.data(), gathered_ = home_ + bytes_, returned_ = gathered_ + bytes_;
    tokens_ = returned_ + bytes_;
    fill_with_noise(home_, bytes_, gpu_.stream.get(), static_cast<unsigned>(control.rank() + 1));
    device::set_device_bytes(tokens_, 0, 2 * job.ranks, gpu_.stream.get());
    gpu_.stream.synchronize();
    std::byte* const mine = home_;
    homes_.resize(static_cast<std::size_t>(job.ranks));
    control.all_gather(&mine, homes_.data(), sizeof mine);
    for (int i = 0; i < job.ranks; ++i) {
      copies_.push_back(std::make_unique<device::Stream>(device));
      copied_.emplace_back(device);
    }
    meet_ = connected([&](int peer) {
      return std::pair(part(tokens_, {1, 1}, peer), part(tokens_ + control_.size(), {1, 1}, peer));
    });
  }
  /// Collective: connects the exchanges of a size.
  void connect(const Size& size) {
    for (const Way way : {Way::there, Way::back, Way::plain})
      exchanges_[static_cast<std::size_t>(way)] =
          connected([&](int peer) { return regions(way, size, peer); });
  }

  /// Of the slowest rank, in the connected size. Collective.
  [[nodiscard]] Time timed(Way way, const Size& size) {
    gpu_.stream.synchronize();
    control_.barrier();
    // Longer than the host takes to enqueue all that follows; it leaves nothing in the L2 cache.
    for (int i = 0; i < 4 * control_.size(); ++i)
      device::set_device_bytes(flush_.data(), i, flush_.bytes(), gpu_.stream.get());
    exchange(meet_);
    begin_.record(gpu_.stream.get());
    if (way == Way::plain && in_one_process())
      copy_plainly(size);
    else
      exchange(exchanges_[static_cast<std::size_t>(way)]);
    end_.record(gpu_.stream.get());
    const bool late = begin_.reached();
    const Time mine{device::seconds_between(begin_, end_), late ? 1 : 0};
    std::vector<Time> all(static_cast<std::size_t>(control_.size()));
    control_.all_gather(&mine, all.data(), sizeof mine);
    Time slowest;
    for (const Time& t : all) {
      slowest.seconds = std::max(slowest.seconds, t.seconds);
      slowest.late = std::max(slowest.late, t.late);
    }
    return slowest;
  }

  /// Throws unless the rows that come home are those that left.
  void check(const Size& size) {
    device::set_device_bytes(gathered_, 0, 2 * bytes_, gpu_.stream.get());
    gpu_.stream.synchronize();
    control_.barrier();
    for (const Way way : {Way::there, Way::back}) exchange(exchanges_[static_cast<std::size_t>(way)]);
    const i64 row = size.run_bytes * control_.size();
    std::vector<std::byte> left(static_cast<std::size_t>(row)), came(left.size());
    for (const i64 at : {i64{0}, (size.rows() - 1) * row}) {
      device::copy_to_host(left.data(), home_ + at, row, gpu_.stream.get());
      device::copy_to_host(came.data(), returned_ + at, row, gpu_.stream.get());
      gpu_.stream.synchronize();
      for (int peer = 0; peer < control_.size(); ++peer) {
        if (peer == control_.rank()) continue;
        const auto run = static_cast<std::size_t>(peer * size.run_bytes);
        if (std::memcmp(&left[run], &came[run], static_cast<std::size_t>(size.run_bytes)) != 0)
          throw VerificationError("rank " + std::to_string(control_.rank()) +
                                  " got other bytes back from rank " + std::to_string(peer) +
                                  " than it had sent: the exchange, or this benchmark's regions, are wrong");
      }
    }
  }

  /// Collective: no peer holds this rank's tensors open any more, which may then be freed.
  void close() {
    gpu_.stream.synchronize();
    control_.barrier();
  }
  [[nodiscard]] bool in_one_process() const { return std::string(control_.name()) == "threads"; }
  [[nodiscard]] std::vector<std::string> notes() const { return gpu_.data_plane->notes(); }

 private:
  /// This rank's rows with the heads of a rank, in a tensor of all heads.
  [[nodiscard]] comm::StridedBytes heads_at_home(std::byte* tensor, const Size& size, int rank) const {
    comm::StridedBytes region;
    region.data = tensor + rank * size.run_bytes;
    region.count[0] = size.rows();
    region.stride[0] = control_.size() * size.run_bytes;
    region.run_bytes = size.run_bytes;
    return region;
  }
  /// A peer's part of a tensor that holds one such part after another: its rows, where they are gathered.
  [[nodiscard]] static comm::StridedBytes part(std::byte* tensor, const Size& size, int rank) {
    comm::StridedBytes region;
    region.data = tensor + rank * size.payload;
    region.run_bytes = size.payload;
    return region;
  }

  /// What goes to a peer, and where what comes from it lands.
  [[nodiscard]] std::pair<comm::StridedBytes, comm::StridedBytes> regions(Way way, const Size& size,
                                                                          int peer) const {
    if (way == Way::there) return {heads_at_home(home_, size, peer), part(gathered_, size, peer)};
    if (way == Way::back) return {part(gathered_, size, peer), heads_at_home(returned_, size, peer)};
    return {part(home_, size, peer), part(gathered_, size, peer)};
  }

  /// Transfers with all peers that are connected.
  struct Exchange {
    std::vector<comm::StridedBytes> regions;
    std::vector<comm::ChannelStart> starts;
    std::unique_ptr<comm::Channels> channels;
  };
  template <class F>
  [[nodiscard]] Exchange connected(F&& regions_of) {
    const int ranks = control_.size();
    Exchange made;
    std::vector<comm::ChannelEnd> ends;
    made.regions.reserve(static_cast<std::size_t>(2 * ranks));
    for (int away = 1; away < ranks; ++away) {
      const int to = (control_.rank() + away) % ranks, from = (control_.rank() + ranks - away) % ranks;
      for (const bool send : {true, false}) {
        const int peer = send ? to : from;
        made.regions.push_back(send ? regions_of(peer).first : regions_of(peer).second);
        comm::ChannelEnd end;
        end.peer = peer, end.send = send, end.operation = "exchange", end.exposed = true;
        end.bytes = made.regions.back().bytes(), end.region_count = 1;
        end.push = push_;
        if (end.offers()) end.regions = &made.regions.back();
        made.starts.push_back({static_cast<std::int32_t>(ends.size()), &made.regions.back(), 1});
        ends.push_back(end);
      }
    }
    made.channels = gpu_.data_plane->connect(ends);
    return made;
  }

  static void exchange(Exchange& all) {
    all.channels->begin();
    all.channels->start(all.starts.data(), static_cast<i64>(all.starts.size()));
    for (std::size_t i = 1; i < all.starts.size(); i += 2) all.channels->wait(all.starts[i].channel);
    for (std::size_t i = 0; i < all.starts.size(); i += 2) all.channels->wait(all.starts[i].channel);
  }

  /// Fetches as many bytes from every peer, each on a stream of its own as the communicator does.
  void copy_plainly(const Size& size) {
    const int ranks = control_.size();
    for (int away = 1; away < ranks; ++away) {
      const int peer = (control_.rank() + ranks - away) % ranks;
      const auto at = static_cast<std::size_t>(peer);
      const device::StreamHandle copies = copies_[at]->get();
      device::wait_for(copies, begin_.get());
      device::check_cuda(
          cudaMemcpyAsync(gathered_ + peer * size.payload, homes_[at] + control_.rank() * size.payload,
                          static_cast<std::size_t>(size.payload), cudaMemcpyDefault, copies),
          "cudaMemcpyAsync from a peer");
      copied_[at].record(copies);
      device::wait_for(gpu_.stream.get(), copied_[at].get());
    }
  }

  comm::Communicator& control_;
  bool push_;
  test::GpuRank gpu_;
  device::DeviceBuffer flush_;
  i64 bytes_ = 0;  ///< of each tensor
  std::byte *home_ = nullptr, *gathered_ = nullptr, *returned_ = nullptr, *tokens_ = nullptr;
  Exchange meet_;  ///< what a stream does next starts once all ranks' streams have come here
  std::array<Exchange, 3> exchanges_;  ///< by Way
  std::vector<std::byte*> homes_;      ///< of all ranks; only ranks of one process reach them
  std::vector<std::unique_ptr<device::Stream>> copies_;
  std::vector<device::Event> copied_;
  device::Event begin_{gpu_.stream.device(), device::EventUse::timing},
      end_{gpu_.stream.device(), device::EventUse::timing};
};

class Table {
 public:
  Table(const Job& job, const Rank& rank)
      : job_(job),
        mode_(rank.in_one_process() ? "threads" : "processes"),
        gpus_(std::min(job.ranks, device::device_count())) {
    if (job.json) return;
    std::printf("%s; %d ranks (%s) on %d GPU%s%s; GB/s that each rank receives\n",
                device::device_info(0).name.c_str(), job.ranks, mode_, gpus_, gpus_ == 1 ? "" : "s",
                gpus_ < job.ranks ? ", which they share: copies within a GPU are among these" : "");
    for (const std::string& note : rank.notes()) std::printf("%s\n", note.c_str());
    std::printf("%-9s %5s %4s %5s %9s %9s %13s %10s %6s %4s\n", "mode", "ranks", "GPUs", "way", "run bytes",
                "MiB/peer", "exchange GB/s", "plain GB/s", "ratio", "late");
  }
  void row(const char* way, const Size& size, const Times& own, const Times& plain) const {
    const double bytes = static_cast<double>(size.payload) * (job_.ranks - 1);
    const double rate = bytes / median(own.seconds) * 1e-9, plain_rate = bytes / median(plain.seconds) * 1e-9;
    const auto run = static_cast<long long>(size.run_bytes),
               per_peer = static_cast<long long>(size.payload / mib);
    if (job_.json)
      std::printf(R"({"mode": "%s", "ranks": %d, "gpus": %d, "by": "%s", "way": "%s", "run_bytes": %lld, )"
                  R"("mib_per_peer": %lld, )"
                  R"("exchange_gb_s": %.6g, "plain_gb_s": %.6g, "rounds": %d, "late": %d})"
                  "\n",
                  mode_, job_.ranks, gpus_, job_.push ? "push" : "pull", way, run, per_peer, rate, plain_rate,
                  job_.rounds, own.late);
    else
      std::printf("%-9s %5d %4d %5s %9lld %9lld %13.1f %10.1f %6.3f %4d\n", mode_, job_.ranks, gpus_, way,
                  run, per_peer, rate, plain_rate, rate / plain_rate, own.late);
    std::fflush(stdout);
  }

 private:
  const Job& job_;
  const char* mode_;
  int gpus_;
};

void compare(const Job& job, Rank& rank, const Size& size, const Table* table) {
  rank.connect(size);
  rank.check(size);
  Times times[3];
  for (int round = -warm_up; round < job.rounds; ++round) {
    for (const Way way : {Way::there, Way::back, Way::plain}) {
      const Time slowest = rank.timed(way, size);
      if (round >= 0) times[static_cast<std::size_t>(way)].add(slowest);
    }
  }
  if (table == nullptr) return;
  table->row("there", size, times[0], times[2]);
  table->row("back", size, times[1], times[2]);
}

void run(const Job& job) {
  comm::run_ranks(job.ranks, {}, [&](comm::Communicator& control) {
    Rank rank(job, control);
    std::unique_ptr<Table> table;
    if (control.rank() == 0) table = std::make_unique<Table>(job, rank);
    for (const i64 payload : job.payloads)
      for (const i64 run_bytes : {256, 512, 1024, 4096})
        compare(job, rank, {run_bytes, payload}, table.get());
    rank.close();
  });
}

[[nodiscard]] Job job_of(int argc, char** argv) {
  Options options(argc, argv);
  Job job;
  job.json = options.flag("--json");
  job.push = options.flag("--push");
  job.ranks = options.number(0, std::max(2, device::device_count()));
  job.rounds = options.number(1, job.rounds);
  for (std::size_t i = 2; !options.word(i, "").empty(); ++i)
    job.payloads.push_back(options.number<i64>(i, 0) * mib);
  if (job.payloads.empty()) job.payloads = {4 * mib, 16 * mib, 64 * mib, 256 * mib};
  const bool positive = std::all_of(job.payloads.begin(), job.payloads.end(), [](i64 b) { return b > 0; });
  if (job.ranks < 2 || job.rounds < 1 || !positive)
    throw UsageError(
        "an exchange needs 2 ranks, 1 round and 1 MiB per peer at least: "
        "bench_cuda_exchange [RANKS [ROUNDS [MIB_PER_PEER...]]] [--push] [--json]");
  if (device::device_count() == 0) throw EnvironmentError("copy engines are timed on GPUs, and none is here");
  return job;
}

}  // namespace
}  // namespace usp::bench

int main(int argc, char** argv) try {
  usp::bench::run(usp::bench::job_of(argc, argv));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
