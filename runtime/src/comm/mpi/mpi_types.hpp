// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mpi_api.hpp"

#include "usp/comm/message.hpp"

#include <vector>

namespace usp::comm {

/// What an MPI call takes to move a list of regions from or to where they lie: (address, count, type).
class MpiLayout {
 public:
  /// `header`, if any, are `header_bytes` that go first.
  MpiLayout(const std::vector<StridedBytes>& regions, std::byte* header, i64 header_bytes);
  ~MpiLayout();
  MpiLayout(const MpiLayout&) = delete;
  MpiLayout& operator=(const MpiLayout&) = delete;
  [[nodiscard]] void* address() const { return address_; }
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] MPI_Datatype type() const { return type_; }

 private:
  void* address_ = nullptr;
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
};

/// Tags of MPI are few (at least 32768, 2^31 in Open MPI); those of messages are 64 bits wide. Tags of the
/// lower half are used as they are. Others are folded onto the upper half: such a message carries its tag in
/// front of the payload and the receiver compares it, so that a collision is an error and never a wrong
/// payload.
class TagMap {
 public:
  /// @param greatest the attribute MPI_TAG_UB
  explicit TagMap(int greatest) : max_tag_(greatest), half_(greatest / 2) {}
  [[nodiscard]] bool folded(i64 tag) const;
  [[nodiscard]] int wire(i64 tag) const;

 private:
  int max_tag_;  ///< the collectives' tag
  i64 half_;
};

}  // namespace usp::comm
