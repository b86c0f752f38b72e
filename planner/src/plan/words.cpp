// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/planner/plan.hpp"

#include <array>
#include <utility>

namespace usp {
namespace {

template <class E, std::size_t N>
using Words = std::array<std::pair<std::string_view, E>, N>;

constexpr Words<Method, 4> methods = {{{"ring", Method::ring},
                                       {"ring_direct", Method::ring_direct},
                                       {"all_gather_kv", Method::all_gather_kv},
                                       {"double_ring", Method::double_ring}}};
constexpr Words<LayoutKind, 4> layouts = {{{"contiguous", LayoutKind::contiguous},
                                           {"zigzag", LayoutKind::zigzag},
                                           {"striped", LayoutKind::striped},
                                           {"balanced", LayoutKind::balanced}}};
constexpr Words<DkvReturn, 3> returns = {
    {{"circulate", DkvReturn::circulate}, {"direct", DkvReturn::direct}, {"cycle", DkvReturn::cycle}}};
constexpr Words<AxisOrder, 2> orders = {
    {{"ulysses_inner", AxisOrder::ulysses_inner}, {"ring_inner", AxisOrder::ring_inner}}};

template <class E, std::size_t N>
std::string_view name_in(const Words<E, N>& words, E value) {
  for (const auto& [word, known] : words)
    if (known == value) return word;
  throw InternalError("an enumerator has no word");
}

template <class E, std::size_t N>
E parse_in(const Words<E, N>& words, std::string_view text, std::string_view flag) {
  std::string all;
  for (const auto& [word, value] : words) {
    if (word == text) return value;
    all += (all.empty() ? "" : ", ") + std::string(word);
  }
  throw UsageError(std::string(flag) + ": '" + std::string(text) + "' is not one of " + all);
}

}  // namespace

std::string_view method_name(Method method) {
  return name_in(methods, method);
}
std::string_view layout_name(LayoutKind layout) {
  return name_in(layouts, layout);
}
std::string_view dkv_return_name(DkvReturn value) {
  return name_in(returns, value);
}
std::string_view order_name(AxisOrder order) {
  return name_in(orders, order);
}

Method parse_method(std::string_view text, std::string_view flag) {
  return parse_in(methods, text, flag);
}
LayoutKind parse_layout(std::string_view text, std::string_view flag) {
  return parse_in(layouts, text, flag);
}
DkvReturn parse_dkv_return(std::string_view text, std::string_view flag) {
  return parse_in(returns, text, flag);
}
AxisOrder parse_order(std::string_view text, std::string_view flag) {
  return parse_in(orders, text, flag);
}

}  // namespace usp
