// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/planner/plan.hpp"

namespace usp {
namespace {

template <class E>
struct Word {
  std::string_view name;
  E value;
};

constexpr Word<Method> methods[] = {{"ring", Method::ring},
                                    {"ring_direct", Method::ring_direct},
                                    {"all_gather_kv", Method::all_gather_kv},
                                    {"double_ring", Method::double_ring}};
constexpr Word<LayoutKind> layouts[] = {{"contiguous", LayoutKind::contiguous},
                                        {"zigzag", LayoutKind::zigzag},
                                        {"striped", LayoutKind::striped},
                                        {"balanced", LayoutKind::balanced}};
constexpr Word<DkvReturn> returns[] = {
    {"circulate", DkvReturn::circulate}, {"direct", DkvReturn::direct}, {"cycle", DkvReturn::cycle}};
constexpr Word<AxisOrder> orders[] = {{"ulysses_inner", AxisOrder::ulysses_inner},
                                      {"ring_inner", AxisOrder::ring_inner}};

constexpr Word<DType> dtypes[] = {
    {"bf16", DType::bf16}, {"fp16", DType::fp16}, {"fp32", DType::fp32}, {"fp64", DType::fp64}};
constexpr Word<Backend> backends[] = {
    {"cpu", Backend::cpu}, {"portable", Backend::portable}, {"cudnn", Backend::cudnn}};
constexpr Word<Pass> passes[] = {{"forward", Pass::forward}, {"backward", Pass::backward}};

template <class E, std::size_t N>
std::string_view name_in(const Word<E> (&words)[N], E value) {
  for (const Word<E>& word : words)
    if (word.value == value) return word.name;
  throw InternalError("an enumerator has no name");
}

template <class E, std::size_t N>
E value_in(const Word<E> (&words)[N], std::string_view text, std::string_view flag) {
  std::string known;
  for (const Word<E>& word : words) {
    if (word.name == text) return word.value;
    known += (known.empty() ? "" : ", ") + std::string(word.name);
  }
  throw UsageError(std::string(flag) + ": '" + std::string(text) + "' is not one of " + known);
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
std::string_view backend_name(Backend backend) {
  return name_in(backends, backend);
}
Backend parse_backend(std::string_view text, std::string_view flag) {
  return value_in(backends, text, flag);
}
std::string_view order_name(AxisOrder order) {
  return name_in(orders, order);
}
std::string_view dtype_name(DType type) {
  return name_in(dtypes, type);
}
std::string_view pass_name(Pass pass) {
  return name_in(passes, pass);
}
Method parse_method(std::string_view text, std::string_view flag) {
  return value_in(methods, text, flag);
}
LayoutKind parse_layout(std::string_view text, std::string_view flag) {
  return value_in(layouts, text, flag);
}
DkvReturn parse_dkv_return(std::string_view text, std::string_view flag) {
  return value_in(returns, text, flag);
}
AxisOrder parse_order(std::string_view text, std::string_view flag) {
  return value_in(orders, text, flag);
}
DType parse_dtype(std::string_view text, std::string_view flag) {
  return value_in(dtypes, text, flag);
}

std::string describe(const Choice& c) {
  const Mesh& m = c.mesh;
  std::string text = "ring " + std::to_string(m.ring()) + " x ulysses " + std::to_string(m.ulysses);
  if (c.tensor() > 1) text += ", tensor " + std::to_string(c.tensor());
  if (c.data() > 1) text += ", data " + std::to_string(c.data());
  text += ", " + std::string(layout_name(c.layout));
  if (m.ring() > 1) {
    text += ", " + std::string(method_name(c.method));
    if (c.method == Method::double_ring)
      text += " " + std::to_string(m.ring_outer) + "x" + std::to_string(m.ring_inner);
    if (m.ulysses > 1) text += ", " + std::string(order_name(c.placement.order));
    if (c.dkv_return != DkvReturn::circulate) text += ", dkv " + std::string(dkv_return_name(c.dkv_return));
  }
  if (c.head_chunks > 1) text += ", " + std::to_string(c.head_chunks) + " head chunks";
  if (c.uneven_heads) text += ", uneven heads";
  return text + ", recompute " + std::string(recompute_name(c.recompute)) + ", ZeRO-" +
         std::to_string(c.zero_stage);
}

}  // namespace usp
