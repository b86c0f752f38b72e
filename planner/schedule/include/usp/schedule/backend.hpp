// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/types.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What computes the blocks of a plan. A backend is one record, BackendTraits, in the folder of its kernel:
/// its word, the memory it works in, what it takes, and what computes the rest. Search, validation,
/// expansion, memory and texts follow from the record; kernels are made by usp/kernels/kernel_factory.hpp.
namespace usp {

struct AttentionPlan;
struct BackendTraits;

namespace schedule {

struct RankSchedule;
struct Step;

/// What one backend takes. The defaults take everything.
struct KernelTraits {
  bool supports_fp32_fp64 = true;  ///< fp32 and fp64 besides bf16 and fp16
  i64 head_dim_step = 1;           ///< head dims are multiples of this
  i64 max_head_dim = usp::max_head_dim;
  i64 max_grad_head_dim = max_head_dim;        ///< backward, from grad_compute_major on
  i64 max_early_grad_head_dim = max_head_dim;  ///< backward, before it
  int grad_compute_major = 0;                  ///< a major number of a compute capability
  bool any_unequal_head_dims = true;           ///< backward; else only grad_dim_qk with grad_dim_v
  i64 grad_dim_qk = 0, grad_dim_v = 0;
  int min_compute_major = 0, max_compute_major = 99;  ///< compute capabilities it runs on
  bool negative_scale = true;                         ///< scales of 0 and below
  bool softcap = true, alibi = true, dropout = true, block_mask = true, kv_group_spans_ranks = true;
  bool grad_without_o = true;  ///< backward takes delta; else o beside it, or instead of it
  bool deterministic_grad = true;
  bool any_slices =
      true;  ///< else slices as blocks of rows (split_into_blocks), of either no more than these:
  std::size_t max_slices = 0;  ///< tried against each other; more would not become few blocks
  std::size_t max_blocks = 0;  ///< each is a plan and a call
};

/// Bytes that a kernel keeps for itself: parts, each as large as its largest use.
class ScratchParts {
 public:
  /// `part` counts the parts of one backend.
  void use(const BackendTraits& backend, int part, i64 bytes);
  [[nodiscard]] i64 bytes() const;

 private:
  struct Part {
    const BackendTraits* backend;
    int part;
    i64 bytes;
  };
  std::vector<Part> parts_;
};

/// A step with pairs, as scratch is counted for it.
struct ScratchStep {
  const AttentionPlan& plan;
  const RankSchedule& schedule;
  const Step& step;
  DType grad_type;  ///< of dq, dk and dv as the backend is given them
};

}  // namespace schedule

/// Generations of cards of compute capability 8.0 and up, as DeviceSpec names them.
inline constexpr std::string_view generations_from_sm_80[] = {"ampere", "ampere_rtx", "ada",
                                                              "hopper", "blackwell",  "blackwell_rtx"};

/// Words of a list that outlives it. C++17, since kernels for GPUs read it.
class WordRefs {
 public:
  constexpr WordRefs() = default;
  template <std::size_t count>
  constexpr WordRefs(const std::string_view (&list)[count]) : begin_(list), size_(count) {}
  [[nodiscard]] constexpr const std::string_view* begin() const { return begin_; }
  [[nodiscard]] constexpr const std::string_view* end() const { return begin_ + size_; }
  [[nodiscard]] constexpr std::size_t size() const { return size_; }
  [[nodiscard]] constexpr bool empty() const { return size_ == 0; }
  [[nodiscard]] constexpr std::string_view front() const { return *begin_; }

 private:
  const std::string_view* begin_ = nullptr;
  std::size_t size_ = 0;
};

struct BackendTraits {
  std::string_view word;
  std::string_view display_name;  ///< in sentences
  WordRefs generations = {};      ///< of the cards it runs on (runs_on_generation)
  std::string_view summary;       ///< one line for readers of a plan
  bool on_gpu = false;            ///< works in the memory of a GPU; else of the host
  bool rounds_results = false;    ///< writes results in the input type, rounded once, where a call overwrites
  bool carries_state = true;      ///< a block is added to its result by the kernel; else by another one
  /// Waits for blocks of keys that are arriving inside one launch for a list of them; else before each block.
  bool waits_inside = false;
  /// Where a choice is free the greatest is taken of those that the card runs; 0: only by its name, or as a
  /// fallback.
  int preference = 0;
  schedule::KernelTraits takes;
  /// Computes what `takes` leaves, or what the parts leave; it takes all that a plan may hold, or has a
  /// fallback of its own. Null: whatever is not taken is refused.
  const BackendTraits* fallback = nullptr;
  /// What computes each pass, where they differ: `takes`, `carries_state` and scratch are theirs
  /// (Backend::of).
  const BackendTraits* forward = nullptr;
  const BackendTraits* backward = nullptr;
  /// Adds the scratch of a step that is given to this backend, its fallback's included; null: none.
  void (*add_scratch)(const schedule::ScratchStep& step, schedule::ScratchParts& parts) = nullptr;
};

/// A value that names a backend; equal to itself alone. Refers to a record that outlives it.
class Backend {
 public:
  constexpr Backend();  ///< of the host
  constexpr explicit Backend(const BackendTraits& traits) : traits_(&traits) {}
  [[nodiscard]] constexpr const BackendTraits* operator->() const { return traits_; }
  [[nodiscard]] constexpr const BackendTraits& operator*() const { return *traits_; }
  friend constexpr bool operator==(Backend a, Backend b) { return a.traits_ == b.traits_; }
  friend constexpr bool operator!=(Backend a, Backend b) { return a.traits_ != b.traits_; }

  /// What computes this pass: a part of a backend that has two, else itself.
  [[nodiscard]] constexpr Backend of(Pass pass) const {
    const BackendTraits* const part = pass == Pass::forward ? traits_->forward : traits_->backward;
    return part == nullptr ? *this : Backend(*part);
  }
  /// Whether passes have backends of their own.
  [[nodiscard]] constexpr bool has_parts() const { return traits_->forward != nullptr; }

  static const Backend cpu, mma, cudnn, hopper, hopper_cudnn;

 private:
  const BackendTraits* traits_;
};

extern const BackendTraits cpu_traits, mma_traits, cudnn_traits, hopper_traits, hopper_cudnn_traits;
constexpr Backend::Backend() : traits_(&cpu_traits) {}
inline constexpr Backend Backend::cpu{cpu_traits};
inline constexpr Backend Backend::mma{mma_traits};
inline constexpr Backend Backend::cudnn{cudnn_traits};
inline constexpr Backend Backend::hopper{hopper_traits};
inline constexpr Backend Backend::hopper_cudnn{hopper_cudnn_traits};

/// The backends that files, flags and the C API name, in the order of the C API's enumerators.
[[nodiscard]] const std::vector<Backend>& backends();
/// The backend of this word; empty: none has it.
[[nodiscard]] std::optional<Backend> find_backend(std::string_view word);
/// Place of a backend in that list. Throws InternalError for one that is not in it.
[[nodiscard]] std::size_t index_of(Backend backend);
template <>
[[nodiscard]] WordList<Backend> word_list<Backend>();
/// Of any backend, in that list or not.
template <>
[[nodiscard]] inline std::string_view word_of<Backend>(Backend backend) {
  return backend->word;
}

/// Whether cards of a generation run what computes both passes. Those of no known generation run none.
[[nodiscard]] bool runs_on_generation(Backend backend, std::string_view generation);

/// The fallback of a backend that has one.
[[nodiscard]] inline Backend fallback_of(Backend backend) {
  return Backend(*backend->fallback);
}
/// What computes the calls of a pass that `backend.of(pass)` leaves, of a backend that has a fallback.
[[nodiscard]] inline Backend fallback_of(Backend backend, Pass pass) {
  const Backend fallback = fallback_of(backend);
  return fallback == backend.of(pass) ? fallback_of(fallback) : fallback;
}
/// The end of a backend's chain of fallbacks: itself, where it has none.
[[nodiscard]] Backend last_fallback(Backend backend);
/// Whether a backend of the list leaves calls to this one.
[[nodiscard]] bool is_fallback(Backend backend);
/// Backends of GPUs with a preference, the greatest first.
[[nodiscard]] const std::vector<Backend>& preferred_gpu_backends();
/// The first of those that several generations of cards run.
[[nodiscard]] Backend preferred_gpu_backend();
/// "a or b": the words of the backends of GPUs.
[[nodiscard]] std::string gpu_backend_words();

}  // namespace usp
