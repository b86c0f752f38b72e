// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

/// Rules of a job's secret. Randomness cannot be checked; these rules refuse what
/// certainly is not.
namespace usp::comm {

/// Whether a launcher's run id is taken for random: 32 hexadecimal digits or more (128 bits; a UUID's dashes
/// do not count), among them a letter and at least 8 different ones. Names, "none", dates and job numbers are
/// not; the hash of a name looks random and is none, which only the user can know.
[[nodiscard]] bool random_run_id(const std::string& id);

/// Throws UsageError for a USP_JOB_TOKEN with white space or control characters, or one that can be guessed:
/// below 16 characters or 8 different ones.
void check_token(const std::string& token);

/// The shell line that makes a secret.
[[nodiscard]] const char* secret_command();

}  // namespace usp::comm
