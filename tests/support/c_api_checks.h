/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "usp/usp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stays on in release builds. */
#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              usp_last_error());                                                              \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)
#define OK(call) CHECK((call) == USP_OK)
/* Fails with a status, and the text names what is wrong. */
#define REFUSED(call, status, word)                  \
  do {                                               \
    CHECK((call) == (status));                       \
    CHECK(strstr(usp_last_error(), (word)) != NULL); \
  } while (0)

enum { B = 2, T = 37, H = 4, HK = 2, D = 8, DV = 6 };

/** A causal call of these sizes. */
static inline usp_attention_desc describe(int32_t ring, int32_t ulysses) {
  usp_attention_desc d;
  OK(usp_attention_desc_init(&d, sizeof d));
  d.batch = B, d.q_tokens = T, d.dtype = USP_FP32;
  d.query_heads = H, d.kv_heads = HK, d.head_dim_qk = D, d.head_dim_v = DV;
  d.ring = ring, d.ulysses = ulysses;
  d.diff_min = 0;
  return d;
}
