/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "usp/usp.h"

/* Planning from C; part of usp/usp.h. In libusp.so; of the static libraries in usp::c_planner, which alone
 * links the planner. */

#ifdef __cplusplus
extern "C" {
#endif

/** Local: plans a training or forward step, as `usp plan` does. `request` is a JSON object
 * (configs/schema/plan_request.v2.schema.json): model, cluster and workload, and where given calibration,
 * fixed degrees and choices, memory and execution. *result is the text that `usp plan --json` prints for the
 * same question, to be freed with usp_text_free; its key "request" can be asked again. USP_INVALID_INPUT
 * names the key that is unknown, missing or wrong, USP_INFEASIBLE says what would fit. Notes on the cluster's
 * source, which the command line prints on stderr, are not given. */
usp_status usp_plan_step_json(const char* request, char** result);
/** Local: the same question; *plan is the text that `usp plan -o` writes, for usp_plan_parse. */
usp_status usp_plan_step_file(const char* request, char** plan);
/** Local: plans one attention call, as `usp plan attention --json` prints it. `request`: cluster (as above,
 * and where given calibration: a shipped one's name or a file) or ranks (threads of this host), shape and the
 * call's rules; keys: usp/planner/step_input.hpp. */
usp_status usp_plan_attention_json(const char* request, char** result);
/** Frees a text that a function returned; null is allowed. */
void usp_text_free(char* text);

#ifdef __cplusplus
}
#endif
