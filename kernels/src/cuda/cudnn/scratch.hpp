// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"

namespace usp::kernels::cudnn {

/// A view whose memory lies in an arena that all steps use in turn.
struct ScratchView {
  View shape;  ///< data null
  i64 offset = 0;
  [[nodiscard]] View in(const Arena& arena) const {
    View view = shape;
    view.data = arena.data() + offset;
    return view;
  }
};

/// Places views of one arena one after another: all are named when a step is prepared, and then reserved at
/// once.
class ScratchLayout {
 public:
  [[nodiscard]] ScratchView add(const View& shape) {
    const ScratchView placed{shape, bytes_};
    bytes_ += align_buffer(shape.elements() * bytes_of(shape.type));
    return placed;
  }
  [[nodiscard]] i64 bytes() const { return bytes_; }

 private:
  i64 bytes_ = 0;
};

}  // namespace usp::kernels::cudnn
