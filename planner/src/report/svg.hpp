// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/report.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace usp {

/// Text as HTML or SVG content or attribute: & < > " ' become entities, control characters blanks.
[[nodiscard]] std::string escaped(std::string_view text);

/// "c3": the class of a colour; colours repeat after twelve.
[[nodiscard]] std::string colour(std::size_t index);

/// Builds one picture. Coordinates in pixels of the view box; all texts are escaped here.
class Svg {
 public:
  Svg(double width, double height, const std::string& title, const std::string& description);

  /// @param hover shown by the browser over the shape; empty: none
  void rect(double x, double y, double width, double height, const std::string& classes,
            const std::string& hover = "");
  void line(double x1, double y1, double x2, double y2, const std::string& classes);
  void polyline(const std::vector<std::pair<double, double>>& points, const std::string& classes);
  void circle(double x, double y, double radius, const std::string& classes, const std::string& hover = "");
  /// @param classes font classes and "end" or "mid" for the anchor
  void text(double x, double y, const std::string& text, const std::string& classes = "");
  [[nodiscard]] std::string str() const;

 private:
  std::string body_;
};

/// A linear scale with at most six round ticks.
struct Scale {
  double least = 0, most = 1;
  double from = 0, to = 1;  ///< pixels
  double unit = 1;          ///< ticks are round multiples of it: 1 GiB for bytes
  [[nodiscard]] double at(double value) const {
    return from + (to - from) * (most > least ? (value - least) / (most - least) : 0.5);
  }
  [[nodiscard]] std::vector<double> ticks() const;
};

/// A table of plain cells; the first row is the header. Columns from `numbers_from` on are aligned right.
[[nodiscard]] std::string html_table(const std::string& caption,
                                     const std::vector<std::vector<std::string>>& rows,
                                     std::size_t numbers_from);

// One picture with its legend and table each.
[[nodiscard]] std::string time_section(const ReportInput& input);
[[nodiscard]] std::string memory_section(const ReportInput& input);
[[nodiscard]] std::string mesh_section(const ReportInput& input);
[[nodiscard]] std::string timeline_section(const ReportInput& input);
[[nodiscard]] std::string pareto_section(const ReportInput& input);
[[nodiscard]] std::string sweep_section(const ReportInput& input);

/// "ring 4 x ulysses 8, tensor 2": a candidate in few words.
[[nodiscard]] std::string short_choice(const Choice& choice);
/// Memory of the card in bytes, or what the request puts in its place.
[[nodiscard]] double card_bytes(const PlanRequest& request);

}  // namespace usp
