// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"

#include "usp/base/version.hpp"

#include <fmt/format.h>

#include <new>

namespace usp::capi {
namespace {

struct LastError {
  usp_status status = USP_OK;
  std::string text;
};

/// C callers have nowhere else to find a text; no state but the text depends on it.
LastError& last_error() noexcept {
  thread_local LastError error;
  return error;
}

usp_status remember(usp_status status, const char* text) noexcept {
  last_error().status = status;
  try {
    last_error().text = text;
  } catch (...) {
    last_error().text.clear();
  }
  return status;
}

}  // namespace

usp_status report() noexcept {
  try {
    throw;
  } catch (const Error& e) {
    return remember(static_cast<usp_status>(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return remember(USP_ENVIRONMENT, "out of memory");
  } catch (const std::exception& e) {
    return remember(USP_INTERNAL, e.what());
  } catch (...) {
    return remember(USP_INTERNAL, "internal error: something was thrown that is no exception");
  }
}

void forget() noexcept {
  last_error().status = USP_OK;
  last_error().text.clear();
}

void throw_returned(int rank, int status) {
  const std::string who = fmt::format("rank {}", rank);
  require(status > USP_OK && status <= USP_VERIFICATION,
          fmt::format("{} returned {}, which is no usp_status", who, status));
  const bool known = last_error().status == status && !last_error().text.empty();
  throw Error(static_cast<ExitCode>(status),
              known ? last_error().text : fmt::format("{} returned status {}", who, usp_status_name(status)));
}

}  // namespace usp::capi

const char* usp_version(void) {
  return usp::version.data();
}

const char* usp_last_error(void) {
  return usp::capi::last_error().text.c_str();
}

const char* usp_status_name(int status) {
  switch (status) {
    case USP_OK:
      return "ok";
    case USP_INTERNAL:
      return "internal";
    case USP_USAGE:
      return "usage";
    case USP_INVALID_INPUT:
      return "invalid_input";
    case USP_INFEASIBLE:
      return "infeasible";
    case USP_ENVIRONMENT:
      return "environment";
    case USP_VERIFICATION:
      return "verification";
    default:
      return "unknown";
  }
}
