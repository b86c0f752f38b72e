// SPDX-License-Identifier: Apache-2.0
#include "usp/kernels/deviation.hpp"

#include "load.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/rounding.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace usp::kernels {
namespace {

/// Adds one element. A value that must be exact has no ratio but 0 or infinity; neither has a NaN.
void add(Deviation& deviation, double x, double truth, double allowed, const Place4& at) {
  if (std::isinf(allowed)) {
    if (!deviation.overflow) deviation.overflow = at;
    return;
  }
  if (x == truth) return;
  const double off = std::abs(x - truth);
  const double ratio =
      std::isfinite(off) && allowed > 0 ? off / allowed : std::numeric_limits<double>::infinity();
  if (ratio <= deviation.ratio) return;
  deviation.ratio = ratio;
  deviation.at = at;
  deviation.value = x;
  deviation.truth = truth;
}

std::string place_text(const Place4& at) {
  return fmt::format("batch {}, token {}, head {}", at.batch, at.token, at.head);
}

}  // namespace

void Deviation::merge(const Deviation& other) {
  std::optional<Place4> first = overflow ? overflow : other.overflow;
  if (other.ratio > ratio) *this = other;
  overflow = first;
}

Deviation deviation(const ConstView& x, const std::vector<i64>& tokens, const OracleTensor& truth,
                    DType type) {
  expects(x.batch == truth.batch && x.width == truth.width && truth.heads.begin <= x.heads.begin &&
              x.heads.end <= truth.heads.end && x.rows == static_cast<i64>(tokens.size()),
          "a result and its oracle differ in shape");
  Deviation worst;
  const double unit = unit_roundoff(type);
  for (i64 b = 0; b < x.batch; ++b)
    for (i64 row = 0; row < x.rows; ++row) {
      const i64 token = tokens[static_cast<std::size_t>(row)];
      for (i64 head = x.heads.begin; head < x.heads.end; ++head) {
        std::size_t at = truth.at(b, token, head);
        for (i64 w = 0; w < x.width; ++w, ++at)
          add(worst, reference::load(x, b, row, head, w), truth.values[at], unit * truth.terms[at],
              {b, token, head, w});
      }
    }
  return worst;
}

Deviation deviation(const ConstView& x, const OracleTensor& truth, DType type) {
  std::vector<i64> tokens(static_cast<std::size_t>(truth.rows));
  std::iota(tokens.begin(), tokens.end(), 0);
  return deviation(x, tokens, truth, type);
}

Deviation deviation(const std::vector<double>& x, const std::vector<double>& truth,
                    const std::vector<double>& terms, DType type) {
  expects(x.size() == truth.size() && x.size() == terms.size(), "a result and its oracle differ in shape");
  Deviation worst;
  for (std::size_t i = 0; i < x.size(); ++i)
    add(worst, x[i], truth[i], unit_roundoff(type) * terms[i], {0, 0, static_cast<i64>(i), 0});
  return worst;
}

std::string fault(const std::string& name, const Deviation& deviation, DType type, Pass pass) {
  if (deviation.overflow)
    return fmt::format("{} at {}: terms overflow the type; not verifiable", name,
                       place_text(*deviation.overflow));
  const double bound = rounding_factor(type, pass);
  if (deviation.ratio <= bound) return "";
  return fmt::format("{} at {}: {:.6g} instead of {:.6g}, off by {:.3g} units of its terms (bound {:g})",
                     name, place_text(deviation.at), deviation.value, deviation.truth, deviation.ratio,
                     bound);
}

}  // namespace usp::kernels
