// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace usp::kernels {

/// The arenas of one Memory whose content no call leaves to the next: between calls their blocks may be the
/// allocator's. `Block` has reserve(), data(), bytes() and release(). Outlives its arenas.
template <class Block>
class ScratchPool {
 public:
  ScratchPool() = default;
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;
  ~ScratchPool() = default;

  [[nodiscard]] std::unique_ptr<Arena> make(std::unique_ptr<Block> block) {
    return std::make_unique<Scratch>(*this, std::move(block));
  }
  void release() {
    for (Scratch* scratch : all_) scratch->block().release();
  }

 private:
  class Scratch final : public Arena {
   public:
    Scratch(ScratchPool& owner, std::unique_ptr<Block> block) : owner_(owner), block_(std::move(block)) {
      owner_.all_.push_back(this);
    }
    ~Scratch() override { owner_.all_.erase(std::find(owner_.all_.begin(), owner_.all_.end(), this)); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    void reserve(i64 bytes) override {
      if (bytes <= bytes_) return;
      bytes_ = 0;  // where the allocator has no room, the next call asks again
      block_->reserve(bytes);
      bytes_ = bytes;
    }
    [[nodiscard]] std::byte* data() const override {
      block_->reserve(bytes_);
      return block_->data();
    }
    [[nodiscard]] i64 bytes() const override { return bytes_; }
    [[nodiscard]] Block& block() { return *block_; }

   private:
    ScratchPool& owner_;
    std::unique_ptr<Block> block_;
    i64 bytes_ = 0;  ///< of the block, where it is not released
  };

  std::vector<Scratch*> all_;
};

}  // namespace usp::kernels
