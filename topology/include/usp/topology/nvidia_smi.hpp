// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <string>

namespace usp::topology {

/// Reads the text of `nvidia-smi topo -m` of one host. `file` is for messages only.
///
/// Rows and columns are found by their labels: tabs or blanks, rows in any order, a wrapped or underlined
/// header, text around the matrix and comments behind a row are understood; what was skipped is listed in
/// `notes`. Rows of NICs may be missing (the device rows hold the same cells); rows of devices may not.
///
/// The text names no card and no speed, so every quantity stays unknown. `lanes` is the number behind NV.
///
/// A domain counts as switched when each pair of more than two devices shows the same NV<n> and n x (devices
/// - 1) exceeds 18, the most NVLinks a device has been built with (NVIDIA H100, B200): the figure is then a
/// device's total, which is what the tool prints behind an NVSwitch. Where that product fits one device the
/// links are taken as direct (four A100 with NV4: 3 x 4 = 12 lanes), and a note says so.
///
/// Throws InvalidInput (line, token): no matrix, a second matrix, `topo -p2p` output, an unknown path token,
/// a missing, doubled or unlabelled row, too few or too many cells, a matrix that is not symmetric.
[[nodiscard]] Cluster read_nvidia_smi_topo(const std::string& text, const std::string& file);

}  // namespace usp::topology
