// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/agreement.hpp"

#include "../failure/faults.hpp"

#include "usp/base/digest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace usp::comm {
namespace {

/// The value that most ranks hold; of several such, the one of the lowest rank.
std::uint64_t usual_value(const std::vector<std::uint64_t>& values) {
  std::map<std::uint64_t, int> holders;
  for (const std::uint64_t value : values) ++holders[value];
  std::uint64_t usual = values.front();
  for (const std::uint64_t value : values)
    if (holders[value] > holders[usual]) usual = value;
  return usual;
}

/// `values` are those of all ranks, in rank order.
void check_field(const std::string& name, const std::vector<std::uint64_t>& values) {
  const std::uint64_t usual = usual_value(values);
  std::vector<int> others;
  for (std::size_t rank = 0; rank < values.size(); ++rank)
    if (values[rank] != usual) others.push_back(static_cast<int>(rank));
  if (others.empty()) return;
  throw DisagreementError(name, others,
                          fmt::format("{} {} another '{}' than the other {} of {} ranks; the exchange would "
                                      "mix unlike data. Start every rank with the same {}",
                                      list_ranks(others), others.size() == 1 ? "holds" : "hold", name,
                                      values.size() - others.size(), values.size(), name));
}

/// What the first round compares: names, and digests of all fields as one.
struct Summary {
  std::uint64_t names = 0, values = 0;
};

[[nodiscard]] Summary summary_of(const std::vector<AgreedField>& fields) {
  Digest names, values;
  for (const AgreedField& field : fields) {
    names.add(field.name.size()).bytes(field.name);
    values.add(field.digest);
  }
  return {names.value(), values.value()};
}

/// Finds the field by which the ranks differ.
void compare_fields(Communicator& communicator, const std::vector<AgreedField>& fields) {
  std::vector<std::uint64_t> mine;
  for (const AgreedField& field : fields) mine.push_back(field.digest);
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<std::uint64_t> all(ranks * mine.size()), values(ranks);
  communicator.all_gather(mine.data(), all.data(), static_cast<i64>(mine.size() * sizeof(std::uint64_t)));
  for (std::size_t i = 0; i < fields.size(); ++i) {
    for (std::size_t rank = 0; rank < ranks; ++rank) values[rank] = all[rank * fields.size() + i];
    check_field(fields[i].name, values);
  }
}

}  // namespace

void agree(Communicator& communicator, const std::vector<AgreedField>& fields) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const Summary mine = summary_of(fields);
  std::vector<Summary> all(ranks);
  communicator.all_gather(&mine, all.data(), sizeof mine);
  std::vector<std::uint64_t> names;
  for (const Summary& summary : all) names.push_back(summary.names);
  check_field("list of agreed fields", names);
  const bool agreed = std::all_of(all.begin(), all.end(),
                                  [&](const Summary& summary) { return summary.values == mine.values; });
  if (!agreed) compare_fields(communicator, fields);
}

}  // namespace usp::comm
