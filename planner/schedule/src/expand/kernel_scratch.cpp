// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/kernel_scratch.hpp"

#include "usp/schedule/plan.hpp"

#include <algorithm>
#include <numeric>

namespace usp::schedule {
namespace {

[[nodiscard]] i64 rounded_up(i64 n, i64 step) {
  return (n + step - 1) / step * step;
}

/// What a backend keeps for itself, each part as large as its largest use.
class Scratch {
 public:
  Scratch(const AttentionPlan& plan, const RankSchedule& schedule, std::vector<i64>& parts)
      : plan_(plan), schedule_(schedule), traits_(kernel_traits(plan.backend)), parts_(parts) {}

  void add(const Step& s) {
    if (s.is(operations::attend)) return add_attend(s);
    if (s.is(operations::attend_grad)) return add_grad(s);
  }

 private:
  void add_attend(const Step& s) {
    if (s.backend.use != Backend::cudnn) return by_mma(s);
    const BlockSplit share = divided(s.slices, false);
    const i64 rows = buffer(s[Tensor::q]).rows, heads = s.query_heads.size(), dv = plan_.shape.head_dim_v;
    const bool rounded = buffer(s[Tensor::o]).type == io();
    use(Part::workspace, 256);
    if (s.overwrite && !plan_.sink && rounded && covers(share, rows)) {
      if (heads > 1) use(Part::block, align_buffer(of_rows(rows, heads, 1, DType::fp32)));
      return;
    }
    for (const BandBlock& b : share.blocks)
      use(Part::block, align_buffer(of_rows(b.q_rows.size(), heads, dv, io())) +
                           align_buffer(of_rows(b.q_rows.size(), heads, 1, DType::fp32)));
    if (buffer(s[Tensor::o]).type != DType::fp32)
      use(Part::state, align_buffer(of_rows(rows, heads, dv, DType::fp32)));
    if (!share.rest.empty()) by_mma(s);
  }

  void add_grad(const Step& s) {
    if (s.backend.use != Backend::cudnn) return grad_by_mma(s, buffer(s[Tensor::dq]).type);
    const BlockSplit share = divided(s.slices, true);
    const AttentionShape& shape = plan_.shape;
    const i64 rows = buffer(s[Tensor::q]).rows, heads = s.query_heads.size(), kv = s.kv_heads.size();
    i64 inputs = 0;
    for (const BufferId id : {s[Tensor::o], s[Tensor::d_o]})
      if (buffer(id).type != io()) inputs += align_buffer(of_rows(rows, heads, shape.head_dim_v, io()));
    use(Part::input, inputs);
    for (const BandBlock& b : share.blocks) use(Part::workspace, grad_workspace(b, heads, kv));
    if (whole(s, share)) return use(Part::block, align_buffer(of_rows(rows, heads, 1, DType::fp32)));
    for (const BandBlock& b : share.blocks)
      use(Part::block, align_buffer(of_rows(b.q_rows.size(), heads, shape.head_dim_qk, io())) +
                           align_buffer(of_rows(b.k_rows.size(), kv, shape.head_dim_qk, io())) +
                           align_buffer(of_rows(b.k_rows.size(), kv, shape.head_dim_v, io())) +
                           align_buffer(of_rows(b.q_rows.size(), heads, 1, DType::fp32)));
    const bool wide = buffer(s[Tensor::dq]).type == DType::fp32 &&
                      buffer(s[Tensor::dk]).type == DType::fp32 && buffer(s[Tensor::dv]).type == DType::fp32;
    if (!wide)
      use(Part::state,
          align_buffer(of_rows(rows, heads, shape.head_dim_qk, DType::fp32)) +
              align_buffer(of_rows(buffer(s[Tensor::dk]).rows, kv, shape.head_dim_qk, DType::fp32)) +
              align_buffer(of_rows(buffer(s[Tensor::dv]).rows, kv, shape.head_dim_v, DType::fp32)));
    if (!share.rest.empty()) grad_by_mma(s, DType::fp32);
  }

  enum class Part : std::uint8_t { block, state, input, delta, workspace, q, k, v, d_o, dq };

  void use(Part part, i64 bytes) {
    i64& most = parts_[static_cast<std::size_t>(part)];
    most = std::max(most, bytes);
  }
  [[nodiscard]] DType io() const { return plan_.shape.dtype; }
  [[nodiscard]] const Buffer& buffer(BufferId id) const {
    return schedule_.buffers[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] i64 of_rows(i64 rows, i64 heads, i64 width, DType type) const {
    return plan_.shape.batch * rows * heads * width * usp::bytes_of(type);
  }
  [[nodiscard]] BlockSplit divided(ListRef slices, bool keeps_shift) const {
    return split_into_blocks(traits_, schedule_.slices.data() + slices.begin, slices.count, keeps_shift);
  }
  [[nodiscard]] static bool covers(const BlockSplit& share, i64 q_rows) {
    return share.rest.empty() && share.blocks.size() == 1 && share.blocks.front().q_rows == Range{0, q_rows};
  }
  /// Gradients that cuDNN writes where they belong.
  [[nodiscard]] bool whole(const Step& s, const BlockSplit& share) const {
    if (!s.overwrite || !covers(share, buffer(s[Tensor::q]).rows)) return false;
    const BandBlock& b = share.blocks.front();
    const Range keys{b.k_rows.begin + b.dk_shift, b.k_rows.end + b.dk_shift};
    return keys == Range{0, buffer(s[Tensor::dk]).rows} && buffer(s[Tensor::dq]).type == io() &&
           buffer(s[Tensor::dk]).type == io() && buffer(s[Tensor::dv]).type == io();
  }
  [[nodiscard]] i64 grad_workspace(const BandBlock& b, i64 heads, i64 kv) const {
    const AttentionShape& s = plan_.shape;
    const i64 sums = of_rows(b.q_rows.size(), heads, s.head_dim_qk + 1, DType::fp32);
    const i64 keys = heads == kv ? 0 : of_rows(b.k_rows.size(), heads, s.head_dim_qk + s.head_dim_v, io());
    return sums + keys + buffer_alignment;
  }

  /// The mma kernel copies inputs whose rows are not whole pieces of 16 bytes.
  void by_mma(const Step& s) {
    const Range heads = s.query_heads, kv = s.kv_heads;
    const i64 dqk = plan_.shape.head_dim_qk, dv = plan_.shape.head_dim_v;
    if (dqk % 8 != 0) {
      use(Part::q, of_rows(buffer(s[Tensor::q]).rows, heads.size(), rounded_up(dqk, 8), io()));
      use(Part::k, of_rows(buffer(s[Tensor::k]).rows, kv.size(), rounded_up(dqk, 8), io()));
    }
    if (dv % 8 != 0) use(Part::v, of_rows(buffer(s[Tensor::v]).rows, kv.size(), rounded_up(dv, 8), io()));
  }
  void grad_by_mma(const Step& s, DType dq) {
    by_mma(s);
    const i64 rows = buffer(s[Tensor::q]).rows, heads = s.query_heads.size();
    const i64 dqk = plan_.shape.head_dim_qk, dv = plan_.shape.head_dim_v;
    if (buffer(s[Tensor::d_o]).type != io() || dv % 8 != 0)
      use(Part::d_o, of_rows(rows, heads, rounded_up(dv, 8), io()));
    if (dq != DType::fp32 || dqk % 2 != 0)
      use(Part::dq, of_rows(rows, heads, rounded_up(dqk, 2), DType::fp32));
    if (s[Tensor::delta] < 0) use(Part::delta, align_buffer(of_rows(rows, heads, 1, DType::fp32)));
  }

  const AttentionPlan& plan_;
  const RankSchedule& schedule_;
  const KernelTraits& traits_;
  std::vector<i64>& parts_;
};

}  // namespace

i64 kernel_scratch_bytes(const AttentionPlan& plan, const std::vector<const RankSchedule*>& schedules) {
  if (plan.backend == Backend::cpu) return 0;
  std::vector<i64> parts(10, 0);
  for (const RankSchedule* schedule : schedules) {
    Scratch scratch(plan, *schedule, parts);
    for (const Step& step : schedule->steps) scratch.add(step);
  }
  return std::accumulate(parts.begin(), parts.end(), i64{0});
}

}  // namespace usp::schedule
