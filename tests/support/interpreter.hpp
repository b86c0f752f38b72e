// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedule_audit.hpp"

#include "usp/schedule/expand.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

/// Executes the explicit schedules of all ranks in fp64 on one thread, message by message, with every buffer
/// starting as NaN or as its bind says. Slow and literal: the judge of generators and of `expand`, not a
/// runtime.
namespace usp::test {

/// [batch][row][head][width]
struct Array {
  i64 batch = 0, rows = 0, heads = 0, width = 0;
  std::vector<double> data;
  Array() = default;
  Array(i64 b, i64 r, i64 h, i64 w, double value)
      : batch(b), rows(r), heads(h), width(w), data(static_cast<std::size_t>(b * r * h * w), value) {}
  double& at(i64 b, i64 r, i64 h, i64 w) {
    return data[static_cast<std::size_t>(((b * rows + r) * heads + h) * width + w)];
  }
  [[nodiscard]] double at(i64 b, i64 r, i64 h, i64 w) const {
    return data[static_cast<std::size_t>(((b * rows + r) * heads + h) * width + w)];
  }
};

struct Problem {
  Array q, k, v;             ///< global tokens
  std::vector<double> sink;  ///< per query head
  double scale = 0.7;
};

class RankState {
 public:
  RankState(const schedule::TokenMap& geometry, const schedule::CompactSchedule& compact, int rank)
      : geometry_(geometry) {
    schedules_[0] = schedule::expand(geometry, compact, rank, Pass::forward);
    schedules_[1] = schedule::expand(geometry, compact, rank, Pass::backward);
  }

  [[nodiscard]] const schedule::RankSchedule& schedule(Pass pass) const {
    return schedules_[pass == Pass::forward ? 0 : 1];
  }

  void start(Pass pass, const Problem& problem, const Array& d_o_local) {
    pass_ = pass;
    problem_ = &problem;
    std::map<std::pair<int, int>, Array> saved;
    if (pass == Pass::backward)
      for (std::size_t i = 0; i < arrays_.size(); ++i) {
        const schedule::Buffer& b = schedule(Pass::forward).buffers[i];
        if (b.name.place == BufferSlot::row || b.name.tensor == Tensor::o) saved[key(b.name)] = arrays_[i];
      }
    if (d_sink.empty()) d_sink.assign(problem.sink.size(), 0);
    arrays_.assign(schedule(pass).buffers.size(), Array());
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      const schedule::Buffer& b = schedule(pass).buffers[i];
      if (b.first >= 0) continue;
      if (b.name.place == BufferSlot::home && b.name.tensor != Tensor::o)
        arrays_[i] = b.name.tensor == Tensor::d_o ? d_o_local : gather(b, input(b.name.tensor));
      else
        arrays_[i] = saved.at(key(b.name));
    }
  }

  void bind(int tick) {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      const schedule::Buffer& b = schedule(pass_).buffers[i];
      if (b.first != tick || b.name.place == BufferSlot::stage) continue;
      const double value = b.fill == schedule::Fill::nan ? std::numeric_limits<double>::quiet_NaN() : 0;
      arrays_[i] = Array(geometry_.plan().shape.batch, b.rows, b.heads.size(), b.width, value);
    }
  }

  [[nodiscard]] std::vector<double> read(const schedule::Transfer& t) {
    std::vector<double> payload;
    each(t, [&](double& x) { payload.push_back(x); });
    if (t.write_mode == WriteMode::accumulate)
      each(t, [](double& x) { x = std::numeric_limits<double>::quiet_NaN(); });
    return payload;
  }
  void apply(const schedule::Transfer& t, const std::vector<double>& payload) {
    std::size_t at = 0;
    each(t, [&](double& x) {
      if (at >= payload.size()) throw std::runtime_error("a message is shorter than its receive");
      if (t.write_mode == WriteMode::overwrite && !std::isnan(x))
        throw std::runtime_error("a copy lands on a value");
      x = t.write_mode == WriteMode::accumulate ? x + payload[at] : payload[at];
      ++at;
    });
    if (at != payload.size()) throw std::runtime_error("a message is longer than its receive");
  }

  void run(const schedule::Step& step) {
    if (step.is(schedule::operations::attend)) return attend(step);
    if (step.is(schedule::operations::delta)) return delta_rows(step);
    if (step.is(schedule::operations::attend_grad)) return attend_grad(step);
    const auto other = others_.find(step.operation);
    if (other == others_.end()) throw std::runtime_error("an operation that the interpreter does not know");
    other->second(*this, step);
  }

  [[nodiscard]] const Array& result(Tensor tensor, BufferSlot place) const {
    const auto& buffers = schedule(pass_).buffers;
    for (std::size_t i = buffers.size(); i-- > 0;)
      if (buffers[i].name == BufferName{tensor, place}) return arrays_[i];
    throw std::runtime_error("no such result");
  }
  [[nodiscard]] const schedule::Buffer& result_buffer(Tensor tensor, BufferSlot place) const {
    const auto& buffers = schedule(pass_).buffers;
    for (std::size_t i = buffers.size(); i-- > 0;)
      if (buffers[i].name == BufferName{tensor, place}) return buffers[i];
    throw std::runtime_error("no such result");
  }
  /// Global tokens of the rows of a buffer.
  [[nodiscard]] std::vector<i64> tokens(const schedule::Buffer& b) const {
    return buffer_tokens(geometry_, schedule(pass_), b);
  }
  std::vector<double> d_sink;

  /// How to compute an operation beside the three of the library.
  using Compute = std::function<void(RankState&, const schedule::Step&)>;
  void teach(const schedule::Operation& operation, Compute compute) {
    others_[&operation] = std::move(compute);
  }
  [[nodiscard]] Array& array(schedule::BufferId id) { return arrays_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] i64 first_head(schedule::BufferId id) const { return head0(id); }

 private:
  [[nodiscard]] static std::pair<int, int> key(BufferName n) {
    return {static_cast<int>(n.tensor), static_cast<int>(n.place)};
  }
  [[nodiscard]] const Array& input(Tensor t) const {
    return t == Tensor::q ? problem_->q : t == Tensor::k ? problem_->k : problem_->v;
  }
  [[nodiscard]] Array gather(const schedule::Buffer& b, const Array& global) const {
    Array local(global.batch, b.rows, global.heads, global.width, 0);
    const std::vector<i64> ids = tokens(b);
    for (i64 x = 0; x < local.batch; ++x)
      for (i64 r = 0; r < b.rows; ++r)
        for (i64 h = 0; h < local.heads; ++h)
          for (i64 w = 0; w < local.width; ++w)
            local.at(x, r, h, w) = global.at(x, ids[static_cast<std::size_t>(r)], h, w);
    return local;
  }
  template <class Each>
  void each(const schedule::Transfer& t, const Each& f) {
    for (std::int32_t i = 0; i < t.regions.count; ++i) {
      const schedule::BufferRegion& region =
          schedule(pass_).regions[static_cast<std::size_t>(t.regions.begin + i)];
      const schedule::Buffer& b = schedule(pass_).buffers[static_cast<std::size_t>(region.buffer)];
      Array& a = arrays_[static_cast<std::size_t>(region.buffer)];
      for (i64 r = region.rows.begin; r < region.rows.end; ++r)
        for (i64 x = 0; x < a.batch; ++x)
          for (i64 h = region.heads.begin; h < region.heads.end; ++h)
            for (i64 w = 0; w < a.width; ++w) f(a.at(x, r, h - b.heads.begin, w));
    }
  }
  [[nodiscard]] i64 head0(schedule::BufferId id) const {
    return schedule(pass_).buffers[static_cast<std::size_t>(id)].heads.begin;
  }

  /// Calls f(query row, key row, gradient row of the key) for every visible pair, slice by slice.
  template <class F>
  void pairs(const schedule::Step& step, const F& f) {
    for (std::int32_t n = 0; n < step.slices.count; ++n) {
      const schedule::Slice& s = schedule(pass_).slices[static_cast<std::size_t>(step.slices.begin + n)];
      for (i64 i = 0; i < s.q_count; ++i)
        for (i64 j = 0; j < s.k_count; ++j) {
          const i64 diff = s.q_pos + i * s.q_step - s.k_pos - j * s.k_step;
          if (diff >= s.diff_min && diff <= s.diff_max)
            f(s.q_row + i, step.key_rows.begin + s.k_row + j, step.dk_rows.begin + s.dk_row + j);
        }
    }
  }
  [[nodiscard]] double score(const Array& q, i64 b, i64 i, i64 h, const Array& k, i64 j, i64 kh) const {
    double sum = 0;
    for (i64 w = 0; w < q.width; ++w) sum += q.at(b, i, h, w) * k.at(b, j, kh, w);
    return sum * problem_->scale;
  }

  void zero(schedule::BufferId id, Range rows, Range heads) {
    Array& a = array(id);
    for (i64 b = 0; b < a.batch; ++b)
      for (i64 r = rows.begin; r < rows.end; ++r)
        for (i64 h = heads.begin; h < heads.end; ++h)
          for (i64 w = 0; w < a.width; ++w) a.at(b, r, h - head0(id), w) = 0;
  }

  void attend(const schedule::Step& s) {
    const i64 group = geometry_.heads().group();
    Array &q = array(s[Tensor::q]), &k = array(s[Tensor::k]), &v = array(s[Tensor::v]),
          &o = array(s[Tensor::o]), &lse = array(s[Tensor::lse]);
    if (s.overwrite) {
      zero(s[Tensor::o], {0, o.rows}, s.query_heads);
      for (i64 head = s.query_heads.begin; head < s.query_heads.end; ++head)
        for (i64 b = 0; b < lse.batch; ++b)
          for (i64 r = 0; r < lse.rows; ++r)
            lse.at(b, r, head - head0(s[Tensor::lse]), 0) =
                geometry_.plan().sink ? problem_->sink[static_cast<std::size_t>(head)]
                                      : -std::numeric_limits<double>::infinity();
    }
    for (i64 head = s.query_heads.begin; head < s.query_heads.end; ++head) {
      const i64 h = head - head0(s[Tensor::q]), kh = head / group - head0(s[Tensor::k]),
                oh = head - head0(s[Tensor::o]);
      pairs(s, [&](i64 i, i64 j, i64) {
        for (i64 b = 0; b < q.batch; ++b) {
          const double x = score(q, b, i, h, k, j, kh), old = lse.at(b, i, oh, 0);
          const double top = std::max(x, old),
                       sum = top + std::log(std::exp(x - top) + (std::isinf(old) ? 0 : std::exp(old - top)));
          const double keep = std::isinf(old) ? 0 : std::exp(old - sum), add = std::exp(x - sum);
          for (i64 w = 0; w < o.width; ++w)
            o.at(b, i, oh, w) = keep * o.at(b, i, oh, w) + add * v.at(b, j, kh, w);
          lse.at(b, i, oh, 0) = sum;
        }
      });
    }
  }
  void delta_rows(const schedule::Step& s) {
    Array &d_o = array(s[Tensor::d_o]), &o = array(s[Tensor::o]), &lse = array(s[Tensor::lse]),
          &delta = array(s[Tensor::delta]);
    for (i64 head = s.query_heads.begin; head < s.query_heads.end; ++head)
      for (i64 b = 0; b < o.batch; ++b)
        for (i64 r = 0; r < o.rows; ++r) {
          double sum = 0;
          for (i64 w = 0; w < o.width; ++w)
            sum += d_o.at(b, r, head - head0(s[Tensor::d_o]), w) * o.at(b, r, head - head0(s[Tensor::o]), w);
          delta.at(b, r, head - head0(s[Tensor::delta]), 0) = sum;
          if (geometry_.plan().sink)
            d_sink[static_cast<std::size_t>(head)] -=
                std::exp(problem_->sink[static_cast<std::size_t>(head)] -
                         lse.at(b, r, head - head0(s[Tensor::lse]), 0)) *
                sum;
        }
  }
  void attend_grad(const schedule::Step& s) {
    const i64 group = geometry_.heads().group();
    Array &q = array(s[Tensor::q]), &k = array(s[Tensor::k]), &v = array(s[Tensor::v]),
          &d_o = array(s[Tensor::d_o]), &lse = array(s[Tensor::lse]);
    const auto delta = [&](i64 b, i64 i, i64 head) {
      if (s[Tensor::delta] >= 0) return array(s[Tensor::delta]).at(b, i, head - head0(s[Tensor::delta]), 0);
      double sum = 0;
      for (i64 w = 0; w < d_o.width; ++w)
        sum += d_o.at(b, i, head - head0(s[Tensor::d_o]), w) *
               array(s[Tensor::o]).at(b, i, head - head0(s[Tensor::o]), w);
      return sum;
    };
    Array &dq = array(s[Tensor::dq]), &dk = array(s[Tensor::dk]), &dv = array(s[Tensor::dv]);
    if (s.overwrite) zero(s[Tensor::dq], {0, dq.rows}, s.query_heads);
    if (s.overwrites_dkv()) {
      zero(s[Tensor::dk], s.dk_rows, s.kv_heads);
      zero(s[Tensor::dv], s.dk_rows, s.kv_heads);
    }
    for (i64 head = s.query_heads.begin; head < s.query_heads.end; ++head) {
      const i64 h = head - head0(s[Tensor::q]), kh = head / group - head0(s[Tensor::k]),
                dkh = head / group - head0(s[Tensor::dk]);
      pairs(s, [&](i64 i, i64 j, i64 out) {
        for (i64 b = 0; b < q.batch; ++b) {
          const double p =
              std::exp(score(q, b, i, h, k, j, kh) - lse.at(b, i, head - head0(s[Tensor::lse]), 0));
          double dp = 0;
          for (i64 w = 0; w < v.width; ++w)
            dp += d_o.at(b, i, head - head0(s[Tensor::d_o]), w) * v.at(b, j, kh, w);
          const double ds = p * (dp - delta(b, i, head)) * problem_->scale;
          for (i64 w = 0; w < q.width; ++w) {
            dq.at(b, i, head - head0(s[Tensor::dq]), w) += ds * k.at(b, j, kh, w);
            dk.at(b, out, dkh, w) += ds * q.at(b, i, h, w);
          }
          for (i64 w = 0; w < v.width; ++w)
            dv.at(b, out, dkh, w) += p * d_o.at(b, i, head - head0(s[Tensor::d_o]), w);
        }
      });
    }
  }

  const schedule::TokenMap& geometry_;
  schedule::RankSchedule schedules_[2];
  Pass pass_ = Pass::forward;
  const Problem* problem_ = nullptr;
  std::vector<Array> arrays_;
  std::map<const schedule::Operation*, Compute> others_;
};

/// Messages under way, by (move, source, target).
using MessageKey = std::tuple<int, int, int>;
using Network = std::map<MessageKey, std::vector<double>>;

/// What happens to a message on arrival: how often it is applied. It may change what is under way.
using Courier =
    std::function<int(Network&, const MessageKey&, const schedule::RankSchedule&, const schedule::Transfer&)>;

/// Runs one pass on all ranks in lock step: posts, then steps, each behind the receives that it awaits, then
/// arrivals of every tick. Throws when a message is missing or left over.
inline void run_pass(std::vector<RankState>& ranks, Pass pass, const Problem& problem,
                     const std::vector<Array>& d_o, const Courier& courier = {}) {
  Network network;
  for (std::size_t p = 0; p < ranks.size(); ++p) ranks[p].start(pass, problem, d_o[p]);
  const int ticks = static_cast<int>(ranks.front().schedule(pass).ticks.size());
  const auto list = [&](std::size_t p, int t) -> const schedule::Tick& {
    return ranks[p].schedule(pass).ticks[static_cast<std::size_t>(t)];
  };
  for (int t = 0; t < ticks; ++t) {
    for (std::size_t p = 0; p < ranks.size(); ++p) {
      ranks[p].bind(t);
      for (std::int32_t i = 0; i < list(p, t).posts.count; ++i) {
        const schedule::Transfer& m =
            ranks[p].schedule(pass).transfers[static_cast<std::size_t>(list(p, t).posts.begin + i)];
        if (m.send) network[{m.move, static_cast<int>(p), m.peer}] = ranks[p].read(m);
      }
    }
    const auto arrive = [&](std::size_t p, std::int32_t transfer) {
      const schedule::RankSchedule& s = ranks[p].schedule(pass);
      const schedule::Transfer& m = s.transfers[static_cast<std::size_t>(transfer)];
      const MessageKey key{m.move, m.peer, static_cast<int>(p)};
      if (network.count(key) == 0) throw std::runtime_error("a receive has no send");
      for (int n = courier ? courier(network, key, s, m) : 1; n > 0; --n) ranks[p].apply(m, network.at(key));
      network.erase(key);
    };
    for (std::size_t p = 0; p < ranks.size(); ++p) {
      const schedule::RankSchedule& s = ranks[p].schedule(pass);
      for_each(s.steps, list(p, t).steps, [&](const schedule::Step& step, std::int32_t) {
        for_each(s.gates, step.gates, [&](std::int32_t gate, std::int32_t) { arrive(p, gate); });
        ranks[p].run(step);
      });
    }
    for (std::size_t p = 0; p < ranks.size(); ++p)
      for_each(ranks[p].schedule(pass).arrivals, list(p, t).arrivals,
               [&](std::int32_t transfer, std::int32_t) { arrive(p, transfer); });
  }
  if (!network.empty()) throw std::runtime_error("a message was sent and never received");
}

/// Dense attention and its gradients over global tokens.
struct Dense {
  Array o, lse, dq, dk, dv;
  std::vector<double> d_sink;
};

[[nodiscard]] inline bool visible(const AttentionPlan& plan, const Documents& docs, i64 q, i64 k) {
  for (std::size_t d = 0; d < docs.count(); ++d)
    if (q >= docs.cu_q[d] && q < docs.cu_q[d + 1] && k >= docs.cu_k[d] && k < docs.cu_k[d + 1]) {
      const i64 diff = q + docs.shift[d] - k;
      return diff >= plan.band.diff_min && diff <= plan.band.diff_max;
    }
  return false;
}

[[nodiscard]] inline Dense dense(const AttentionPlan& plan, const Documents& docs, const Problem& p,
                                 const Array& d_o) {
  const i64 B = p.q.batch, Sq = p.q.rows, Sk = p.k.rows, H = p.q.heads, group = H / p.k.heads;
  Dense out{Array(B, Sq, H, p.v.width, 0),         Array(B, Sq, H, 1, 0),
            Array(B, Sq, H, p.q.width, 0),         Array(B, Sk, p.k.heads, p.k.width, 0),
            Array(B, Sk, p.k.heads, p.v.width, 0), std::vector<double>(static_cast<std::size_t>(H), 0)};
  std::vector<double> s(static_cast<std::size_t>(Sk));
  for (i64 b = 0; b < B; ++b)
    for (i64 h = 0; h < H; ++h)
      for (i64 i = 0; i < Sq; ++i) {
        const double sink =
            plan.sink ? p.sink[static_cast<std::size_t>(h)] : -std::numeric_limits<double>::infinity();
        double top = sink, sum = 0, delta = 0;
        for (i64 j = 0; j < Sk; ++j) {
          double x = 0;
          for (i64 w = 0; w < p.q.width; ++w) x += p.q.at(b, i, h, w) * p.k.at(b, j, h / group, w);
          s[static_cast<std::size_t>(j)] =
              visible(plan, docs, i, j) ? x * p.scale : -std::numeric_limits<double>::infinity();
          top = std::max(top, s[static_cast<std::size_t>(j)]);
        }
        if (std::isinf(top)) {
          out.lse.at(b, i, h, 0) = top;
          continue;
        }
        for (double x : s) sum += std::exp(x - top);
        sum += std::exp(sink - top);
        const double lse = top + std::log(sum);
        out.lse.at(b, i, h, 0) = lse;
        for (i64 j = 0; j < Sk; ++j)
          for (i64 w = 0; w < p.v.width; ++w)
            out.o.at(b, i, h, w) +=
                std::exp(s[static_cast<std::size_t>(j)] - lse) * p.v.at(b, j, h / group, w);
        for (i64 w = 0; w < p.v.width; ++w) delta += d_o.at(b, i, h, w) * out.o.at(b, i, h, w);
        if (plan.sink) out.d_sink[static_cast<std::size_t>(h)] -= std::exp(sink - lse) * delta;
        for (i64 j = 0; j < Sk; ++j) {
          const double prob = std::exp(s[static_cast<std::size_t>(j)] - lse);
          if (prob == 0) continue;
          double dp = 0;
          for (i64 w = 0; w < p.v.width; ++w) {
            dp += d_o.at(b, i, h, w) * p.v.at(b, j, h / group, w);
            out.dv.at(b, j, h / group, w) += prob * d_o.at(b, i, h, w);
          }
          const double ds = prob * (dp - delta) * p.scale;
          for (i64 w = 0; w < p.q.width; ++w) {
            out.dq.at(b, i, h, w) += ds * p.k.at(b, j, h / group, w);
            out.dk.at(b, j, h / group, w) += ds * p.q.at(b, i, h, w);
          }
        }
      }
  return out;
}

}  // namespace usp::test
