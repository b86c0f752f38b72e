// SPDX-License-Identifier: Apache-2.0
#include "gather.hpp"

#include "usp/base/error.hpp"

#include <cstring>

namespace usp {
namespace {

/// Of one rank: tensors of its tokens are the largest.
constexpr i64 max_report_bytes = i64{1} << 40;

/// Values one after another, as bytes.
class Writer {
 public:
  void bytes(const void* data, std::size_t count) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + count);
  }
  template <class T>
  void value(T x) {
    bytes(&x, sizeof x);
  }
  template <class T>
  void list(const std::vector<T>& values) {
    value(static_cast<i64>(values.size()));
    if (!values.empty()) bytes(values.data(), values.size() * sizeof(T));
  }
  void text(const std::string& s) {
    value(static_cast<i64>(s.size()));
    bytes(s.data(), s.size());
  }
  [[nodiscard]] const std::vector<std::byte>& content() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// A peer's numbers are checked before memory is taken for them.
void require_sound(bool holds) {
  if (!holds)
    throw EnvironmentError(
        "a rank sent a report without sense; the ranks run different versions of usp, or a connection is "
        "damaged");
}

class Reader {
 public:
  explicit Reader(const std::vector<std::byte>& bytes) : bytes_(bytes) {}
  [[nodiscard]] std::size_t left() const { return bytes_.size() - at_; }
  void bytes(void* data, std::size_t count) {
    require_sound(count <= left());
    if (count > 0) std::memcpy(data, bytes_.data() + at_, count);
    at_ += count;
  }
  template <class T>
  [[nodiscard]] T value() {
    T x;
    bytes(&x, sizeof x);
    return x;
  }
  template <class T>
  [[nodiscard]] std::vector<T> list() {
    std::vector<T> values(count(sizeof(T)));
    bytes(values.data(), values.size() * sizeof(T));
    return values;
  }
  /// How many values of so many bytes each follow, at least.
  [[nodiscard]] std::size_t count(std::size_t value_bytes) {
    const auto number = value<i64>();
    require_sound(number >= 0 && static_cast<std::size_t>(number) <= left() / value_bytes);
    return static_cast<std::size_t>(number);
  }
  [[nodiscard]] std::string text() {
    const std::vector<char> characters = list<char>();
    return {characters.begin(), characters.end()};
  }

 private:
  const std::vector<std::byte>& bytes_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::vector<std::byte>> gather(comm::Communicator& communicator,
                                           const std::vector<std::byte>& mine) {
  const int ranks = communicator.size();
  std::vector<i64> sizes(static_cast<std::size_t>(ranks));
  const auto size = static_cast<i64>(mine.size());
  communicator.all_gather(&size, sizes.data(), sizeof size);
  std::vector<std::vector<std::byte>> all;
  const auto message = [&](int peer, bool send, std::byte* data, i64 bytes) {
    comm::StridedBytes region;
    region.data = data;
    region.run_bytes = bytes;
    comm::Message m;
    m.peer = peer;
    m.send = send;
    m.operation = "gather";
    m.regions = &region;
    m.region_count = 1;
    comm::Ticket ticket = 0;
    communicator.reserve(1, 1);
    communicator.post(&m, 1, &ticket);
    communicator.wait(ticket);
  };
  if (communicator.rank() != 0) {
    message(0, true, const_cast<std::byte*>(mine.data()), size);
    return all;
  }
  all.push_back(mine);
  for (const i64 bytes : sizes) require_sound(bytes >= 0 && bytes <= max_report_bytes);
  for (int peer = 1; peer < ranks; ++peer) {
    all.emplace_back(static_cast<std::size_t>(sizes[static_cast<std::size_t>(peer)]));
    message(peer, false, all.back().data(), sizes[static_cast<std::size_t>(peer)]);
  }
  return all;
}

std::vector<Part> gather(comm::Communicator& communicator, const Part& mine) {
  Writer out;
  const kernels::ConstView view = mine.rows.view();
  out.list(mine.tokens);
  out.value(view.type);
  for (const i64 n : {view.batch, view.heads.begin, view.heads.end, view.width}) out.value(n);
  out.bytes(mine.rows.bytes().data(), mine.rows.bytes().size());
  std::vector<Part> parts;
  for (const std::vector<std::byte>& bytes : gather(communicator, out.content())) {
    Reader in(bytes);
    Part part;
    part.tokens = in.list<i64>();
    const auto type = in.value<DType>();
    const i64 batch = in.value<i64>();
    const i64 first = in.value<i64>(), last = in.value<i64>();
    const i64 width = in.value<i64>();
    require_sound(type <= DType::fp64 && batch >= 0 && first >= 0 && last >= first && width >= 0);
    i64 bytes_of_rows = bytes_of(type);
    for (const i64 n : {batch, static_cast<i64>(part.tokens.size()), last - first, width})
      require_sound(!__builtin_mul_overflow(bytes_of_rows, n, &bytes_of_rows));
    require_sound(static_cast<std::size_t>(bytes_of_rows) == in.left());
    part.rows = HostTensor(type, batch, static_cast<i64>(part.tokens.size()), {first, last}, width);
    in.bytes(part.rows.bytes().data(), part.rows.bytes().size());
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<RankResult> gather(comm::Communicator& communicator, const RankResult& mine) {
  Writer out;
  for (const int i : {0, 1}) {
    const PassRecord& record = mine.record[i];
    out.list(record.transfers);
    out.list(record.ticks);
    out.value(record.workspace_bytes);
    out.value(record.touched_bytes);
    out.value(record.gated_calls);
    out.list(mine.seconds[i]);
  }
  out.text(mine.device);
  out.value(mine.planned_memory_bytes);
  out.value(mine.held_memory_bytes);
  out.value(static_cast<i64>(mine.notes.size()));
  for (const std::string& note : mine.notes) out.text(note);
  out.list(mine.fallbacks);
  std::vector<RankResult> all;
  for (const std::vector<std::byte>& bytes : gather(communicator, out.content())) {
    Reader in(bytes);
    RankResult run;
    for (const int i : {0, 1}) {
      PassRecord& record = run.record[i];
      record.pass = i == 0 ? Pass::forward : Pass::backward;
      record.transfers = in.list<TransferRecord>();
      record.ticks = in.list<TickTimes>();
      record.workspace_bytes = in.value<i64>();
      record.touched_bytes = in.value<i64>();
      record.gated_calls = in.value<i64>();
      run.seconds[i] = in.list<double>();
    }
    run.device = in.text();
    run.planned_memory_bytes = in.value<i64>();
    run.held_memory_bytes = in.value<i64>();
    run.notes.resize(in.count(sizeof(i64)));
    for (std::string& note : run.notes) note = in.text();
    run.fallbacks = in.list<kernels::BackendFallback>();
    all.push_back(std::move(run));
  }
  return all;
}

}  // namespace usp
