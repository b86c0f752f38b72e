// SPDX-License-Identifier: Apache-2.0
#include "page.hpp"
#include "report_parts.hpp"

#include "usp/base/error.hpp"
#include "usp/base/version.hpp"
#include "usp/planner/plan_print.hpp"

#include <fmt/format.h>

#include <map>
#include <string_view>

namespace usp {
namespace {

/// Scripts of the page in the order in which they are run.
constexpr std::string_view scripts[] = {"base.js",  "bars.js",  "candidates.js", "machine.js",
                                        "ticks.js", "sweep.js", "page.js"};

std::string_view page_file(std::string_view path) {
  for (const report_page::File& file : report_page::all())
    if (file.path == path) return file.text;
  throw InternalError(fmt::format("the report has no {}", path));
}

/// As text between tags: & < > become entities, control characters but line feeds blanks.
std::string as_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += (static_cast<unsigned char>(c) < 32 && c != '\n') || c == 127 ? ' ' : c;
  }
  return out;
}

/// JSON inside a script element, which the first "</script" would end and "<!--" would change.
std::string as_script_data(std::string_view json) {
  std::string out;
  for (const char c : json) out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return out;
}

std::string title_of(const ReportInput& input) {
  return as_text(fmt::format("usp: {} on {}", input.request->model->name, input.request->cluster->name));
}

std::string all_scripts() {
  std::string text;
  for (const std::string_view script : scripts) text += page_file(script);
  return text;
}

}  // namespace

std::string report_html(const ReportInput& input) {
  expects(input.plan->feasible(), "a report needs a feasible plan");
  const std::map<std::string_view, std::string> parts = {
      {"title", title_of(input)},
      {"style", std::string(page_file("style.css"))},
      {"text", as_text(plan_text(*input.request, *input.plan))},
      {"data", as_script_data(report_data_json(input))},
      {"script", all_scripts()},
      {"version", std::string(version)}};
  std::string_view rest = page_file("page.html");
  std::string html;
  for (std::size_t open = rest.find("{{"); open != std::string_view::npos; open = rest.find("{{")) {
    const std::size_t close = rest.find("}}", open);
    expects(close != std::string_view::npos, "every mark of the page's template is closed");
    html += rest.substr(0, open);
    html += parts.at(rest.substr(open + 2, close - open - 2));
    rest.remove_prefix(close + 2);
  }
  return html += rest;
}

}  // namespace usp
