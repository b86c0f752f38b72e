// SPDX-License-Identifier: Apache-2.0
// One libFuzzer target per property; USP_FUZZ_PROPERTY names it.
#include <cstddef>
#include <cstdint>

#include USP_FUZZ_HEADER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(usp::fuzz::USP_FUZZ_PROPERTY(std::string(reinterpret_cast<const char*>(data), size)));
  return 0;
}
