// SPDX-License-Identifier: Apache-2.0
#include "cudnn_kernel.hpp"

namespace usp::cuda::cudnn {

std::string why_not(const CallTraits& c) {
  const auto is = [&](i64 dqk, i64 dv) { return c.dqk == dqk && c.dv == dv; };
  if (c.terms->softcap != 0) return "cuDNN has no softcap here";
  if (c.terms->alibi_slopes != nullptr) return "cuDNN's ALiBi has slopes of its own";
  if (c.terms->dropout != 0) return "cuDNN's dropout has random numbers of its own";
  if (c.terms->blocks != nullptr) return "cuDNN has no block mask here";
  if (c.query_heads.begin % c.group != 0 || c.query_heads.end % c.group != 0)
    return "a group of query heads is torn, which cuDNN cannot name";
  if (c.dqk % 8 != 0 || c.dv % 8 != 0) return "cuDNN takes head dims that are multiples of 8";
  const i64 greatest = c.backward && c.compute_major < 9 ? 128 : 256;
  if (c.dqk > greatest || c.dv > greatest) return "the head dim is greater than cuDNN's greatest";
  if (c.backward && c.dqk != c.dv && !is(192, 128)) return "cuDNN's gradient takes unequal head dims 192/128";
  if (c.backward && !c.has_o) return "cuDNN's gradient needs o";
  if (c.backward && c.deterministic)
    return "cuDNN's deterministic gradient takes memory that grows with the square of the length";
  return {};
}

std::string why_not(const Block& b) {
  if (b.q_rows.size() == 1 || b.k_rows.size() == 1)
    return "cuDNN's gradient of a single query or key is not a number";
  if (b.bounds_left() && b.q_rows.size() > b.k_rows.size())
    return "cuDNN takes windows of at most as many queries as keys";
  return {};
}

}  // namespace usp::cuda::cudnn
