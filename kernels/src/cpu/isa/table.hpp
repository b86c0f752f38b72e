// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packing.hpp"
#include "products.hpp"
#include "softmax.hpp"

namespace usp::kernels::cpu {
namespace {

template <class T>
constexpr TileOps<T> table_of{static_cast<i64>(lanes_of<T>),
                              strip_rows,
                              panel_vectors,
                              widen<T>,
                              pack_strips<T>,
                              pack_element_strips<T>,
                              pack_panel<T>,
                              pack_columns<T>,
                              unpack_panel<T>,
                              strip_product<T>,
                              outer_product<T>,
                              mask<T>,
                              softcap<T>,
                              alibi<T>,
                              keep<T>,
                              multiply<T>,
                              softmax<T>,
                              scale_columns<T>,
                              softmax_grad<T>,
                              softmax_grad_terms<T>,
                              blend<T>,
                              dot<T>};

}  // namespace
}  // namespace usp::kernels::cpu
