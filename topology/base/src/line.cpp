// SPDX-License-Identifier: Apache-2.0
#include "usp/base/line.hpp"

#include <cerrno>
#include <poll.h>
#include <string>
#include <unistd.h>

namespace usp {

void print_line(std::string_view text) {
  std::string line(text);
  line += '\n';
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd room{STDERR_FILENO, POLLOUT, 0};
      ::poll(&room, 1, -1);
      continue;
    }
    if (written <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace usp
