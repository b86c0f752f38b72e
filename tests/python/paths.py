# SPDX-License-Identifier: Apache-2.0
import pathlib

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
HEADER = REPOSITORY / "runtime/include/usp/usp.h"
