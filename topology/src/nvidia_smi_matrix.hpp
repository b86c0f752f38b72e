// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <optional>
#include <string>
#include <vector>

/// The matrix of `nvidia-smi topo -m` as labels and cells, before any meaning. Not installed.
namespace usp::topology::smi {

struct Cell {
  std::string token;
  LinkKind kind = LinkKind::unknown;
  int lanes = 0;
  bool self = false;
};

struct Column {
  std::string label;  ///< "GPU3", "NIC0", "mlx5_0"
  long line = 0;
  std::optional<int> gpu;          ///< the number behind GPU
  std::optional<int> nic_number;   ///< the number behind NIC
  std::string nic_name;            ///< from the legend "NIC0: mlx5_0"
  std::optional<std::size_t> row;  ///< index into Matrix::rows
};

struct Row {
  std::size_t column = 0;  ///< whose row it is
  long line = 0;
  std::vector<Cell> cells;  ///< one per column
  std::optional<int> numa;
};

struct Matrix {
  std::vector<Column> columns;
  std::vector<Row> rows;
  std::vector<std::string> notes;  ///< what was stripped, or read as something else
  std::vector<std::string>
      ignored;  ///< one sentence for each line or part of one that is no part of the matrix
};

/// Finds header, rows and NIC legend. Throws InvalidInput as read_nvidia_smi_topo does, except for what
/// concerns more than one row (missing device rows, symmetry).
[[nodiscard]] Matrix read_matrix(const std::string& text, const std::string& file);

}  // namespace usp::topology::smi
