// SPDX-License-Identifier: Apache-2.0
#include "svg.hpp"

#include "usp/base/units.hpp"

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

std::string px(double value) {
  return format_fixed(value, 1);
}

std::string hover_title(const std::string& hover) {
  return hover.empty() ? "" : "<title>" + escaped(hover) + "</title>";
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
  return "c" + std::to_string(index % 12);
}

Svg::Svg(double width, double height, const std::string& title, const std::string& description)
    : body_(R"(<svg role="img" viewBox="0 0 )" + px(width) + " " + px(height) +
            "\" style=\"min-width:" + px(std::min(width, 620.0)) + "px;max-width:" + px(width * 1.15) +
            "px\"><title>" + escaped(title) + "</title><desc>" + escaped(description) + "</desc>\n") {}

void Svg::rect(double x, double y, double width, double height, const std::string& classes,
               const std::string& hover) {
  body_ += "<rect x=\"" + px(x) + "\" y=\"" + px(y) + "\" width=\"" + px(std::max(0.0, width)) +
           "\" height=\"" + px(height) + "\" class=\"" + classes + "\">" + hover_title(hover) + "</rect>\n";
}

void Svg::line(double x1, double y1, double x2, double y2, const std::string& classes) {
  body_ += "<line x1=\"" + px(x1) + "\" y1=\"" + px(y1) + "\" x2=\"" + px(x2) + "\" y2=\"" + px(y2) +
           "\" class=\"" + classes + "\"></line>\n";
}

void Svg::polyline(const std::vector<std::pair<double, double>>& points, const std::string& classes) {
  std::string list;
  for (const auto& [x, y] : points) list += (list.empty() ? "" : " ") + px(x) + "," + px(y);
  body_ += "<polyline points=\"" + list + "\" class=\"" + classes + "\"></polyline>\n";
}

void Svg::circle(double x, double y, double radius, const std::string& classes, const std::string& hover) {
  body_ += "<circle cx=\"" + px(x) + "\" cy=\"" + px(y) + "\" r=\"" + px(radius) + "\" class=\"" + classes +
           "\">" + hover_title(hover) + "</circle>\n";
}

void Svg::text(double x, double y, const std::string& text, const std::string& classes) {
  body_ += "<text x=\"" + px(x) + "\" y=\"" + px(y) + "\"" +
           (classes.empty() ? "" : " class=\"" + classes + "\"") + ">" + escaped(text) + "</text>\n";
}

std::string Svg::str() const {
  return "<div class=\"figure\">" + body_ + "</svg></div>\n";
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
  std::string text = "<div class=\"figure\"><table><caption>" + escaped(caption) + "</caption>\n";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const char* cell = r == 0 ? "th" : "td";
    text += "<tr>";
    for (std::size_t i = 0; i < rows[r].size(); ++i)
      text += std::string("<") + cell + (r == 0 ? " scope=\"col\"" : "") +
              (i >= numbers_from ? " class=\"num\"" : "") + ">" + escaped(rows[r][i]) + "</" + cell + ">";
    text += "</tr>\n";
  }
  return text + "</table></div>\n";
}

}  // namespace usp
