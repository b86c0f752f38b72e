// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/agreement.hpp"

#include <algorithm>
#include <map>

namespace usp {
namespace {

[[nodiscard]] std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

/// Ranks whose digest is not the one that most have (of equals, the one of the lowest rank).
[[nodiscard]] std::vector<int> dissenters(const std::vector<std::uint64_t>& digests, std::size_t field,
                                          std::size_t fields) {
  std::map<std::uint64_t, int> votes;
  const std::size_t ranks = digests.size() / fields;
  for (std::size_t p = 0; p < ranks; ++p) ++votes[digests[p * fields + field]];
  std::uint64_t most = digests[field];
  for (const auto& [digest, count] : votes)
    if (count > votes[most]) most = digest;
  std::vector<int> out;
  for (std::size_t p = 0; p < ranks; ++p)
    if (digests[p * fields + field] != most) out.push_back(static_cast<int>(p));
  return out;
}

}  // namespace

void agree(Communicator& communicator, const std::vector<AgreedField>& fields) {
  std::vector<std::uint64_t> mine, all(fields.size() * static_cast<std::size_t>(communicator.size()));
  for (const AgreedField& field : fields) mine.push_back(field.digest);
  communicator.all_gather(mine.data(), all.data(), static_cast<i64>(mine.size() * sizeof(std::uint64_t)));
  for (std::size_t f = 0; f < fields.size(); ++f) {
    const std::vector<int> ranks = dissenters(all, f, fields.size());
    if (ranks.empty()) continue;
    throw DisagreementError(
        fields[f].name, ranks,
        "rank " + list(ranks) + " of " + std::to_string(communicator.size()) + " holds another " +
            fields[f].name + " than the others, so the exchanges would not match; give every rank the same");
  }
}

}  // namespace usp
