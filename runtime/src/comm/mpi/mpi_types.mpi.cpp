// SPDX-License-Identifier: Apache-2.0
#include "mpi_types.hpp"

#include "../group/collectives.hpp"
#include "../regions/region_walk.hpp"
#include "mpi_control.hpp"

namespace usp::comm {
namespace {

/// Replaces a type by `count` of it, `stride` bytes apart.
void repeat(MPI_Datatype& type, i64 count, i64 stride) {
  if (count == 1) return;
  MPI_Datatype wider = MPI_DATATYPE_NULL;
  check_mpi(MPI_Type_create_hvector(static_cast<int>(count), 1, stride, type, &wider),
            "MPI_Type_create_hvector");
  MPI_Type_free(&type);
  type = wider;
}

MPI_Datatype type_of(const StridedBytes& region) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  check_mpi(MPI_Type_contiguous(static_cast<int>(region.run_bytes), MPI_BYTE, &type), "MPI_Type_contiguous");
  for (int dimension = 2; dimension >= 0; --dimension)
    repeat(type, region.count[dimension], region.stride[dimension]);
  return type;
}

MPI_Aint address_of(const std::byte* data) {
  MPI_Aint address = 0;
  MPI_Get_address(data, &address);
  return address;
}

}  // namespace

MpiLayout::MpiLayout(const std::vector<StridedBytes>& regions, std::byte* header, i64 header_bytes) {
  const auto region_count = static_cast<i64>(regions.size());
  i64 bytes = 0;
  for (const StridedBytes& region : regions) bytes += region.bytes();
  const RunCursor first(regions.data(), region_count);
  if (header_bytes == 0 && !first.done() && first.left() == bytes) {
    address_ = first.data();
    count_ = static_cast<int>(bytes);
    return;
  }
  std::vector<MPI_Datatype> types;
  std::vector<MPI_Aint> addresses;
  const auto add = [&](const StridedBytes& region) {
    types.push_back(type_of(region));
    addresses.push_back(address_of(region.data));
  };
  if (header_bytes > 0) add({.data = header, .run_bytes = header_bytes});
  for (const StridedBytes& region : regions) add(region);
  const std::vector<int> ones(types.size(), 1);
  check_mpi(MPI_Type_create_struct(static_cast<int>(types.size()), ones.data(), addresses.data(),
                                   types.data(), &type_),
            "MPI_Type_create_struct");
  check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  for (MPI_Datatype& type : types) MPI_Type_free(&type);
  address_ = MPI_BOTTOM;
  count_ = 1;
}

MpiLayout::~MpiLayout() {
  if (type_ != MPI_BYTE) MPI_Type_free(&type_);
}

bool TagMap::folded(i64 tag) const {
  return tag != collective_tag && (tag < 0 || tag >= half_);
}

int TagMap::wire(i64 tag) const {
  if (tag == collective_tag) return max_tag_;
  if (!folded(tag)) return static_cast<int>(tag);
  const auto room = static_cast<std::uint64_t>(max_tag_ - half_);
  return static_cast<int>(half_ + static_cast<i64>(static_cast<std::uint64_t>(tag) % room));
}

}  // namespace usp::comm
