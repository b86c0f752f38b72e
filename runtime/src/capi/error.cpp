// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"

#include "usp/base/version.hpp"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <optional>
#include <type_traits>

namespace usp::capi {
namespace {

struct LastError {
  usp_status status = USP_OK;
  std::string text;
  std::exception_ptr error;  ///< owns the lists and texts of usp_last_fault
};

/// C callers have nowhere else to find a text; no state but the text depends on it.
LastError& last_error() noexcept {
  thread_local LastError error;
  return error;
}

/// Within a catch.
usp_status remember(usp_status status, const char* text) noexcept {
  last_error().status = status;
  last_error().error = std::current_exception();
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
  last_error().error = nullptr;
}

void throw_returned(int rank, int status) {
  const std::string who = fmt::format("rank {}", rank);
  require(status > USP_OK && status <= USP_VERIFICATION,
          fmt::format("{} returned {}, which is no usp_status", who, status));
  const LastError& last = last_error();
  if (last.status == status && last.error != nullptr) std::rethrow_exception(last.error);
  throw Error(static_cast<ExitCode>(status),
              fmt::format("{} returned status {}", who, usp_status_name(status)));
}

namespace {

constexpr std::size_t first_fault = offsetof(usp_fault, field) + sizeof(usp_fault::field);

void set_ranks(usp_fault& fault, const std::vector<int>& ranks) {
  static_assert(std::is_same_v<int, std::int32_t>);
  fault.ranks = ranks.data();
  fault.rank_count = static_cast<std::int32_t>(ranks.size());
}

/// Refers to `error`; none where it is of another type.
std::optional<usp_fault> fault_in(const std::exception_ptr& error) {
  usp_fault fault{sizeof(usp_fault), USP_FAULT_COMMUNICATION, -1, -1, 0, nullptr, "", ""};
  try {
    if (error != nullptr) std::rethrow_exception(error);
    return std::nullopt;
  } catch (const comm::CommunicationError& e) {
    fault.tick = e.fault().tick;
    fault.rank = e.fault().rank;
    fault.operation = e.fault().operation.c_str();
    set_ranks(fault, e.fault().missing);
  } catch (const comm::DisagreementError& e) {
    fault.kind = USP_FAULT_DISAGREEMENT;
    fault.field = e.field().c_str();
    set_ranks(fault, e.ranks());
  } catch (...) {
    return std::nullopt;
  }
  return fault;
}

}  // namespace
}  // namespace usp::capi

usp_status usp_last_fault(usp_fault* fault) {
  using namespace usp::capi;
  bool found = false;
  const usp_status status = guarded([&] {
    check_size(given(fault, "fault").size, first_fault, sizeof(usp_fault), "fault");
    const std::optional<usp_fault> own = fault_in(last_error().error);
    found = own.has_value();
    if (found) put(*own, first_fault, fault, "fault");
  });
  return status == USP_OK && !found ? USP_USAGE : status;
}

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
