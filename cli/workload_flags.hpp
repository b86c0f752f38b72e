// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flag_group.hpp"

#include <string>
#include <vector>

namespace usp::cli {

/// The flags of tokens and their mask that a call and a step share; `Type`: DType of a call, Precision of a
/// step.
template <class Type>
struct WorkloadFlags {
  i64 seq = 0;  ///< 0: not given
  i64 batch = 1;
  Type dtype = Type::bf16;
  bool causal = false, full = false;
  std::vector<i64> documents;  ///< empty: one
  bool forward_only = false;

  /// Throws UsageError for two masks.
  void check_mask() const {
    if (causal && full) throw UsageError("--causal and --full exclude each other; give one");
  }
};

/// Text of --help that depends on the verb.
struct WorkloadHelp {
  const char* group;
  std::string seq, batch, dtype, documents, forward_only;
};

/// Returns the option of --seq.
template <class Type>
CLI::Option* add_workload_flags(const Verb& verb, WorkloadFlags<Type>& flags, const WorkloadHelp& help) {
  FlagGroup group(verb, help.group);
  CLI::Option* seq = group.tokens("--seq", flags.seq, help.seq);
  group.number("--batch", flags.batch, help.batch + " (1)", 1, max_batch);
  group.word("--dtype", flags.dtype,
             word_choice<Type>() + " (" + std::string(word_of(flags.dtype)) + ")" + help.dtype);
  group.flag("--causal", flags.causal, "causal mask (the default)");
  group.flag("--full", flags.full, "no mask");
  group.documents(flags.documents, "lengths of packed documents that sum to --seq, e.g. " + help.documents);
  group.flag("--forward-only", flags.forward_only, help.forward_only);
  return seq;
}

}  // namespace usp::cli
