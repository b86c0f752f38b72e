// SPDX-License-Identifier: Apache-2.0
#include "run_request_json.hpp"

#include "usp/schedule/words.hpp"

namespace usp {
namespace {

/// Of strings and lists.
template <class T>
Json value_or_null(const T& value) {
  return value.empty() ? Json(nullptr) : Json(value);
}

Json word_or_null(const std::optional<Transport>& transport) {
  return transport ? Json(word_of(*transport)) : Json(nullptr);
}

}  // namespace

Json request_json(const RunRequest& request) {
  return {{"plan_digest", request.plan_digest},
          {"layer", request.layer},
          {"documents", value_or_null(request.documents)},
          {"forward_only", request.forward_only},
          {"seed", request.seed},
          {"device", value_or_null(request.device)},
          {"kernel", value_or_null(request.kernel)},
          {"devices", value_or_null(request.devices)},
          {"ulysses_transport", word_or_null(request.ulysses_transport)},
          {"ring_transport", word_or_null(request.ring_transport)},
          {"deterministic", request.deterministic},
          {"watchdog_s", request.watchdog_s},
          {"trust_network", request.trust_network},
          {"repeat", request.repeat},
          {"q", value_or_null(request.q)},
          {"k", value_or_null(request.k)},
          {"v", value_or_null(request.v)},
          {"d_out", value_or_null(request.d_out)},
          {"verify", request.verify},
          {"tolerance", json_or_null(request.tolerance)},
          {"dry_run", request.dry_run},
          {"debug_nan", request.debug_nan}};
}

}  // namespace usp
