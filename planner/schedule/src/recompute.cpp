// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/recompute.hpp"

namespace usp {

std::string kinds_text(Offload offload, std::string_view separator) {
  std::string text;
  for (const Word<Kept>& kind : word_list<Kept>())
    if (offload.has(kind.value)) text.append(text.empty() ? "" : separator).append(kind.text);
  return text.empty() ? "none" : text;
}

}  // namespace usp
