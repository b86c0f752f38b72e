// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <string>
#include <vector>

namespace usp {

/// A displacement on the ring axis: outer and inner steps.
struct RingShift {
  std::int16_t outer = 0;
  std::int16_t inner = 0;
  friend bool operator==(RingShift a, RingShift b) { return a.outer == b.outer && a.inner == b.inner; }
};

/// Ring offsets [begin, end) by number (Mesh::shift_of); empty means "no filter".
struct RingOffsets {
  std::int16_t begin = 0;
  std::int16_t end = 0;
  [[nodiscard]] bool any() const { return end > begin; }
  [[nodiscard]] int count() const { return end - begin; }
  friend bool operator==(RingOffsets a, RingOffsets b) { return a.begin == b.begin && a.end == b.end; }
};

/// The sequence-parallel mesh of one group: ring rows by ulysses columns. Rank p = r * ulysses + u inside the
/// group, where r = outer * ring_inner + inner. A plain ring has ring_outer = 1. Pure value; holds no
/// communicator.
struct Mesh {
  int ring_outer = 1;
  int ring_inner = 1;
  int ulysses = 1;

  [[nodiscard]] int ring() const { return ring_outer * ring_inner; }
  [[nodiscard]] int size() const { return ring() * ulysses; }
  [[nodiscard]] int ring_of(int rank) const { return rank / ulysses; }
  [[nodiscard]] int ulysses_of(int rank) const { return rank % ulysses; }
  [[nodiscard]] int rank(int r, int u) const { return r * ulysses + u; }

  /// The ring row that lies `shift` away from row r; both axes wrap.
  [[nodiscard]] int row_at(int r, RingShift shift) const {
    const int outer = wrap(r / ring_inner + shift.outer, ring_outer);
    const int inner = wrap(r % ring_inner + shift.inner, ring_inner);
    return outer * ring_inner + inner;
  }
  /// Ring offsets are numbered d = outer * ring_inner + inner, 0 being the own row.
  [[nodiscard]] RingShift shift_of(int d) const {
    return {static_cast<std::int16_t>(d / ring_inner), static_cast<std::int16_t>(d % ring_inner)};
  }
  [[nodiscard]] static RingShift back(RingShift s) {
    return {static_cast<std::int16_t>(-s.outer), static_cast<std::int16_t>(-s.inner)};
  }
  [[nodiscard]] static RingShift between(RingShift from, RingShift to) {
    return {static_cast<std::int16_t>(to.outer - from.outer),
            static_cast<std::int16_t>(to.inner - from.inner)};
  }
  friend bool operator==(const Mesh& a, const Mesh& b) {
    return a.ring_outer == b.ring_outer && a.ring_inner == b.ring_inner && a.ulysses == b.ulysses;
  }

 private:
  [[nodiscard]] static int wrap(int x, int n) {
    x %= n;
    return x < 0 ? x + n : x;
  }
};

}  // namespace usp
