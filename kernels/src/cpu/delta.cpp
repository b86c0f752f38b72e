// SPDX-License-Identifier: Apache-2.0
#include "panel.hpp"
#include "passes.hpp"

#include <algorithm>
#include <cmath>

namespace usp::kernels::cpu {

template <class T>
void delta(const TileOps<T>& ops, Scratch& scratch, const DeltaArgs& a) {
  T *d_o_row = nullptr, *o_row = nullptr;
  scratch.divide([&](Scratch& s) {
    s.take(d_o_row, a.o.width);
    s.take(o_row, a.o.width);
  });
  for (i64 head = a.query_heads.begin; head < a.query_heads.end; ++head)
    for (i64 b = 0; b < a.o.batch; ++b)
      for (i64 r = 0; r < a.o.rows; ++r) {
        const Rows<T> d_o = rows_of(ops, a.d_o, b, head, {r, r + 1}, d_o_row);
        const Rows<T> o = rows_of(ops, a.o, b, head, {r, r + 1}, o_row);
        const double sum = ops.dot(d_o.data, o.data, a.o.width);
        set_scalar(a.delta, b, r, head, sum);
        // No logit exceeds its lse; one that does so by the rounding of a great lse has no infinite share.
        if (a.sink != nullptr)
          a.d_sink[head] -= std::exp(std::min(0.0, a.sink[head] - scalar(a.lse, b, r, head))) * sum;
      }
}
template void delta(const TileOps<float>&, Scratch&, const DeltaArgs&);
template void delta(const TileOps<double>&, Scratch&, const DeltaArgs&);

}  // namespace usp::kernels::cpu
