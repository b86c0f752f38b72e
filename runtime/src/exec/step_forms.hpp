// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/runtime/operation_kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace usp {

/// One call, prepared once per form of its tensors: layers with tensors of other strides share a schedule.
/// Keeps the forms used last, and all that a CUDA graph was captured with, whose replay reads their tables.
class StepForms {
 public:
  static constexpr std::size_t kept = 8;

  /// Null: the call has to be prepared.
  [[nodiscard]] PreparedOperation* find(const StepList& list) {
    for (auto form = forms_.begin(); form != forms_.end(); ++form)
      if (form->operation->fits(list)) {
        std::rotate(forms_.begin(), form, form + 1);
        return forms_.front().operation.get();
      }
    return nullptr;
  }
  /// Null: the call has to be prepared, which a capture cannot hold.
  [[nodiscard]] PreparedOperation* hold(const StepList& list) {
    PreparedOperation* const found = find(list);
    if (found != nullptr) forms_.front().held = true;
    return found;
  }
  PreparedOperation& add(std::unique_ptr<PreparedOperation> operation) {
    const auto is_held = [](const Form& form) { return form.held; };
    if (static_cast<std::size_t>(std::count_if(forms_.begin(), forms_.end(), is_held)) + kept <=
        forms_.size())
      forms_.erase(std::find_if_not(forms_.rbegin(), forms_.rend(), is_held).base() - 1);
    forms_.insert(forms_.begin(), Form{std::move(operation), false});
    return *forms_.front().operation;
  }

 private:
  struct Form {
    std::unique_ptr<PreparedOperation> operation;
    bool held = false;
  };
  std::vector<Form> forms_;  ///< used last first
};

}  // namespace usp
