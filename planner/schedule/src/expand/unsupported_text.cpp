// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/kernel_traits.hpp"

#include <fmt/format.h>

#include <array>

namespace usp::schedule {
namespace {

/// In the order of the enum.
constexpr std::array<const char*, unsupported_reason_count> texts{{
    "",
    "the {name} backend supports bf16 and fp16",
    "the {name} backend does not support softcap",
    "the {name} backend does not support given ALiBi slopes",
    "the {name} backend cannot reproduce the plan's dropout mask",
    "the {name} backend does not support block masks",
    "a KV group spans ranks, which the {name} backend does not support",
    "the {name} backend supports head dims that are multiples of {step}",
    "the head dim exceeds the {name} backend's maximum",
    "{name}'s backward supports unequal head dims {qk}/{v} only",
    "{name}'s backward needs o",
    "{name}'s deterministic backward needs memory quadratic in the length",
    "query and key rows have unequal strides",
    "too many slices for {name} to be faster",
    "too many blocks for {name} to be faster",
    "{name}'s backward of a single query or key returns NaN",
    "the {name} backend supports windows with at most as many queries as keys",
    "no pair is visible: results are only initialized",
    "the {name} backend runs on GPUs of compute capability {first}.x to {last}.x",
    "the {name} backend supports positive scales",
    "tensor rows are not aligned to 16 bytes",
    "{name} has no execution plan for this block shape",
}};

}  // namespace

std::string text_of(UnsupportedReason why, Backend backend) {
  const KernelTraits& takes = backend->takes;
  return fmt::format(fmt::runtime(texts[static_cast<std::size_t>(why)]),
                     fmt::arg("name", backend->display_name), fmt::arg("step", takes.head_dim_step),
                     fmt::arg("qk", takes.grad_dim_qk), fmt::arg("v", takes.grad_dim_v),
                     fmt::arg("first", takes.min_compute_major), fmt::arg("last", takes.max_compute_major));
}

}  // namespace usp::schedule
