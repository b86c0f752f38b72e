// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"

#include <vector>

namespace usp::kernels::cudnn {

/// Device memory of one call: all pieces are named first, then reserved at once, so that a call of a known
/// shape allocates nothing.
class Scratch {
 public:
  explicit Scratch(Memory& memory) : arena_(memory.make_arena()) {}
  void begin() {
    wanted_.clear();
    bytes_ = 0;
  }
  /// The view's data is set by reserve(); the view must live until then.
  void want(View& view) {
    wanted_.push_back({&view, bytes_});
    bytes_ += align_buffer(view.elements() * bytes_of(view.type));
  }
  void reserve() {
    arena_->reserve(bytes_);
    for (const Wanted& w : wanted_) w.view->data = arena_->data() + w.offset;
  }

 private:
  struct Wanted {
    View* view;
    i64 offset;
  };
  std::unique_ptr<Arena> arena_;
  std::vector<Wanted> wanted_;
  i64 bytes_ = 0;
};

}  // namespace usp::kernels::cudnn
