// SPDX-License-Identifier: Apache-2.0
#include "svg.hpp"

#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

std::string px(double value) {
  return format_fixed(value, 1);
}

std::string hover_title(const std::string& hover) {
  return hover.empty() ? "" : fmt::format("<title>{}</title>", escaped(hover));
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 32 || c == 127 ? ' ' : c;
    }
  }
  return out;
}

std::string colour(std::size_t index) {
  return fmt::format("c{}", index % 12);
}

Svg::Svg(double width, double height, const std::string& title, const std::string& description)
    : body_(fmt::format("<svg role=\"img\" viewBox=\"0 0 {} {}\" style=\"min-width:{}px;max-width:{}px\">"
                        "<title>{}</title><desc>{}</desc>\n",
                        px(width), px(height), px(std::min(width, 620.0)), px(width * 1.15), escaped(title),
                        escaped(description))) {}

void Svg::rect(double x, double y, double width, double height, const std::string& classes,
               const std::string& hover) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{}\">{}</rect>\n", px(x),
                       px(y), px(std::max(0.0, width)), px(height), classes, hover_title(hover));
}

void Svg::line(double x1, double y1, double x2, double y2, const std::string& classes) {
  body_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{}\"></line>\n", px(x1), px(y1),
                       px(x2), px(y2), classes);
}

void Svg::polyline(const std::vector<std::pair<double, double>>& points, const std::string& classes) {
  std::string list;
  for (const auto& [x, y] : points) list += fmt::format("{}{},{}", list.empty() ? "" : " ", px(x), px(y));
  body_ += fmt::format("<polyline points=\"{}\" class=\"{}\"></polyline>\n", list, classes);
}

void Svg::circle(double x, double y, double radius, const std::string& classes, const std::string& hover) {
  body_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" class=\"{}\">{}</circle>\n", px(x), px(y),
                       px(radius), classes, hover_title(hover));
}

void Svg::text(double x, double y, const std::string& text, const std::string& classes) {
  body_ += fmt::format("<text x=\"{}\" y=\"{}\"{}>{}</text>\n", px(x), px(y),
                       classes.empty() ? "" : fmt::format(" class=\"{}\"", classes), escaped(text));
}

std::string Svg::str() const {
  return fmt::format("<div class=\"figure\">{}</svg></div>\n", body_);
}

std::vector<double> Scale::ticks() const {
  const double span = (most - least) / unit;
  if (!(span > 0)) return {least};
  double step = std::pow(10.0, std::floor(std::log10(span / 5)));
  for (const double factor : {2.0, 2.5, 2.0})
    if (span / step > 6) step *= factor;
  std::vector<double> list;
  for (double tick = std::ceil(least / unit / step) * step; tick * unit <= most * (1 + 1e-9); tick += step)
    list.push_back(tick * unit);
  return list;
}

std::string html_table(const std::string& caption, const std::vector<std::vector<std::string>>& rows,
                       std::size_t numbers_from) {
  std::string text = fmt::format("<div class=\"figure\"><table><caption>{}</caption>\n", escaped(caption));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const char* cell = r == 0 ? "th" : "td";
    text += "<tr>";
    for (std::size_t i = 0; i < rows[r].size(); ++i)
      text += fmt::format("<{}{}{}>{}</{}>", cell, r == 0 ? " scope=\"col\"" : "",
                          i >= numbers_from ? " class=\"num\"" : "", escaped(rows[r][i]), cell);
    text += "</tr>\n";
  }
  return text + "</table></div>\n";
}

}  // namespace usp
