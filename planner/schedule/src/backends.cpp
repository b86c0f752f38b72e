// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/schedule/backend.hpp"

#include <algorithm>

namespace usp {

const std::vector<Backend>& backends() {
  static const std::vector<Backend> list = {Backend::cpu, Backend::mma, Backend::cudnn, Backend::hopper,
                                            Backend::hopper_cudnn};
  return list;
}

std::optional<Backend> find_backend(std::string_view word) {
  for (const Backend backend : backends())
    if (backend->word == word) return backend;
  return std::nullopt;
}

std::size_t index_of(Backend backend) {
  const auto at = std::find(backends().begin(), backends().end(), backend);
  expects(at != backends().end(), "a backend that no list names has no number");
  return static_cast<std::size_t>(at - backends().begin());
}

template <>
WordList<Backend> word_list<Backend>() {
  static const std::vector<Word<Backend>> words = [] {
    std::vector<Word<Backend>> list;
    for (const Backend backend : backends()) list.push_back({backend->word, backend});
    return list;
  }();
  return {words.data(), words.size()};
}

bool runs_on_generation(Backend backend, std::string_view generation) {
  const auto runs = [&](Pass pass) {
    const auto& known = backend.of(pass)->generations;
    return std::find(known.begin(), known.end(), generation) != known.end();
  };
  return runs(Pass::forward) && runs(Pass::backward);
}

Backend last_fallback(Backend backend) {
  while (backend->fallback != nullptr) backend = fallback_of(backend);
  return backend;
}

bool is_fallback(Backend backend) {
  return std::any_of(backends().begin(), backends().end(),
                     [&](Backend other) { return other->fallback == &*backend; });
}

const std::vector<Backend>& preferred_gpu_backends() {
  static const std::vector<Backend> list = [] {
    std::vector<Backend> preferred;
    for (const Backend backend : backends())
      if (backend->on_gpu && backend->preference > 0) preferred.push_back(backend);
    std::sort(preferred.begin(), preferred.end(),
              [](Backend a, Backend b) { return a->preference > b->preference; });
    return preferred;
  }();
  return list;
}

Backend preferred_gpu_backend() {
  for (const Backend backend : preferred_gpu_backends())
    if (backend->generations.size() > 1) return backend;
  throw InternalError("no backend of GPUs is listed");
}

std::string gpu_backend_words() {
  std::string words;
  for (const Backend backend : backends())
    if (backend->on_gpu) words += (words.empty() ? "" : " or ") + std::string(backend->word);
  return words;
}

namespace schedule {

void ScratchParts::use(const BackendTraits& backend, int part, i64 bytes) {
  for (Part& known : parts_)
    if (known.backend == &backend && known.part == part) {
      known.bytes = std::max(known.bytes, bytes);
      return;
    }
  parts_.push_back({&backend, part, bytes});
}

i64 ScratchParts::bytes() const {
  i64 sum = 0;
  for (const Part& part : parts_) sum += part.bytes;
  return sum;
}

}  // namespace schedule
}  // namespace usp
