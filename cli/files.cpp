// SPDX-License-Identifier: Apache-2.0
#include "files.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/runtime/run_print.hpp"

#include <string>
#include <vector>

namespace usp::cli {
namespace {

/// One file that the command line names.
struct Named {
  std::string flag, name;
  bool written;
  std::optional<FileIdentity> identity;
};

/// What was given for an option, or its default.
std::vector<std::string> values_of(const CLI::Option& option) {
  if (option.count() > 0) return option.results();
  return option.get_default_str().empty() ? std::vector<std::string>{}
                                          : std::vector<std::string>{option.get_default_str()};
}

void collect(const CLI::App& verb, std::vector<Named>& files) {
  for (const CLI::Option* option : verb.get_options()) {
    const std::string type = option->get_type_name();
    const bool written = type == output_file || type == results_folder;
    if (!written && type != input_file) continue;
    for (const std::string& value : values_of(*option)) {
      std::vector<std::string> names{value};
      if (type == results_folder) names = result_files(value);
      for (const std::string& name : names)
        files.push_back({option->get_name(), name, written, file_identity(name, written ? 1 : 0)});
    }
  }
  for (const CLI::App* part : verb.get_subcommands()) collect(*part, files);
}

/// Whether a name is stdin (or stdout) itself; both flags would share what there is once.
bool is_standard(const Named& file) {
  return file.name == "-" || file.name == (file.written ? "/dev/stdout" : "/dev/stdin");
}

std::string both(const Named& a, const Named& b) {
  return a.flag + " and " + b.flag;
}

void check_pair(const Named& a, const Named& b) {
  if (!a.written && !b.written) {
    if (is_standard(a) && is_standard(b))
      throw UsageError(both(a, b) + " both read stdin, which is there once; save one of them to a file");
    return;
  }
  if (a.written && b.written && is_standard(a) && is_standard(b))
    throw UsageError(both(a, b) + " both write to stdout; name a file for one of them");
  if (!a.identity || a.identity != b.identity) return;
  throw UsageError(both(a, b) + " are the same file (" + a.name + (a.name == b.name ? "" : ", " + b.name) +
                   "), which would be " +
                   (a.written && b.written ? "written twice" : "replaced by what is made of it") +
                   "; name another file to write");
}

}  // namespace

void check_files(const CLI::App& app) {
  std::vector<Named> files;
  collect(app, files);
  for (std::size_t i = 0; i < files.size(); ++i)
    for (std::size_t j = i + 1; j < files.size(); ++j) check_pair(files[i], files[j]);
}

}  // namespace usp::cli
