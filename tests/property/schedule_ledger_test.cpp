// SPDX-License-Identifier: Apache-2.0
// Bytes sent per rank equal those of an independent implementation (tests/data/README.md).
#include "schedule_audit.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <map>

namespace usp::test {
namespace {

using nlohmann::json;

std::vector<Range> ranges(const json& j, const char* key) {
  std::vector<Range> list;
  if (j.contains(key))
    for (const json& pair : j.at(key)) list.push_back({pair[0].get<i64>(), pair[1].get<i64>()});
  return list;
}

ScheduleCase read_case(const json& j) {
  static const std::map<std::string, Method> methods{{"ring", Method::ring},
                                                     {"ring_direct", Method::ring_direct},
                                                     {"all_gather_kv", Method::all_gather_kv},
                                                     {"double_ring", Method::double_ring}};
  static const std::map<std::string, LayoutKind> layouts{{"contiguous", LayoutKind::contiguous},
                                                         {"zigzag", LayoutKind::zigzag},
                                                         {"striped", LayoutKind::striped},
                                                         {"balanced", LayoutKind::balanced}};
  ScheduleCase c;
  const auto pair = [&](const char* key, auto& a, auto& b) {
    a = j.at(key)[0].get<std::decay_t<decltype(a)>>();
    b = j.at(key)[1].get<std::decay_t<decltype(b)>>();
  };
  AttentionShape& shape = c.plan.shape;
  pair("tokens", shape.q_tokens, shape.kv_tokens);
  pair("heads", shape.query_heads, shape.kv_heads);
  pair("dims", shape.head_dim_qk, shape.head_dim_v);
  shape.batch = j.at("batch").get<i64>();
  c.plan.mesh = {j.at("mesh")[0].get<int>(), j.at("mesh")[1].get<int>(), j.at("mesh")[2].get<int>()};
  c.plan.method = methods.at(j.at("method").get<std::string>());
  c.plan.layout = layouts.at(j.at("layout").get<std::string>());
  if (!j.at("band")[0].is_null()) c.plan.band.diff_min = j.at("band")[0].get<i64>();
  if (!j.at("band")[1].is_null()) c.plan.band.diff_max = j.at("band")[1].get<i64>();
  c.plan.dkv_return = j.value("cycle", false) ? DkvReturn::cycle : DkvReturn::circulate;
  c.plan.head_chunks = j.value("head_chunks", 1);
  c.plan.prune = j.value("prune", false);
  c.plan.save_exchanged_qkv = j.value("save_exchanged_qkv", true);
  c.plan.replicated_q = ranges(j, "replicated_q");
  c.plan.replicated_k = ranges(j, "replicated_k");
  c.documents = {j.at("cu_q").get<std::vector<i64>>(), j.at("cu_k").get<std::vector<i64>>(),
                 j.at("shift").get<std::vector<i64>>()};
  return c;
}

TEST(ScheduleLedger, EqualsAnIndependentImplementation) {
  std::ifstream file(USP_TEST_DATA "/schedule_ledger.json");
  const json cases = json::parse(file);
  ASSERT_GE(cases.size(), 300U);
  for (const json& j : cases) {
    const ScheduleCase c = read_case(j);
    const Expanded all(c);
    ASSERT_EQ(sent_bytes(all.of(Pass::forward)), j.at("forward").get<std::vector<i64>>()) << j;
    ASSERT_EQ(sent_bytes(all.of(Pass::backward)), j.at("backward").get<std::vector<i64>>()) << j;
  }
}

}  // namespace
}  // namespace usp::test
