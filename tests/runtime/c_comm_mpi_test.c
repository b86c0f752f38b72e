/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that mpirun started, from C: sums, groups, a fault that leaves the communicator usable, and with the
 * argument "abort" the end of a job by one of its ranks. */
#include "c_api_checks.h"

static void expect_other_documents(usp_comm* comm) {
  usp_attention_desc desc = describe(usp_comm_size(comm), 1);
  usp_plan* plan = NULL;
  usp_attention* attention = NULL;
  const int64_t cu_seqlens[] = {0, usp_comm_rank(comm) == 1 ? 8 : 9, T};
  usp_fault fault;
  fault.size = sizeof fault;
  OK(usp_plan_create(&desc, &plan));
  OK(usp_attention_create(plan, comm, &attention));
  REFUSED(usp_attention_set_batch(attention, cu_seqlens, 2), USP_ENVIRONMENT, "rank 1 holds another 'batch'");
  OK(usp_last_fault(&fault));
  CHECK(fault.kind == USP_FAULT_DISAGREEMENT && fault.rank_count == 1 && fault.ranks[0] == 1);
  OK(usp_attention_set_batch(attention, NULL, 0));
  usp_attention_destroy(attention);
  usp_plan_destroy(plan);
}

/* Every rank reports the reason; the destruction then ends all processes with the status of the fault. */
static int abort_job(usp_comm* comm) {
  if (usp_comm_rank(comm) == 1) OK(usp_comm_abort(comm, "the data set ended"));
  CHECK(usp_comm_barrier(comm) == USP_ENVIRONMENT);
  fprintf(stderr, "rank %d: %s\n", (int)usp_comm_rank(comm), usp_last_error());
  usp_comm_destroy(comm);
  return 1;
}

int main(int count, char** arguments) {
  usp_comm *comm = NULL, *group = NULL;
  OK(usp_comm_create_launched(NULL, &comm));
  if (count == 2 && strcmp(arguments[1], "abort") == 0) return abort_job(comm);
  const int32_t rank = usp_comm_rank(comm), last = usp_comm_size(comm) - 1;
  CHECK(last >= 1);
  double sum = rank;
  OK(usp_comm_all_reduce_f64(comm, &sum, 1));
  CHECK(sum == 0.5 * last * (last + 1));
  const int32_t list[] = {last, 0};
  OK(usp_comm_group(comm, list, 2, &group));
  CHECK((group != NULL) == (rank == 0 || rank == last));
  if (group != NULL) {
    int32_t ranks[2];
    OK(usp_comm_all_gather(group, &rank, ranks, sizeof rank));
    CHECK(ranks[0] == last && ranks[1] == 0);
  }
  usp_comm_destroy(group);
  expect_other_documents(comm);
  usp_comm_destroy(comm);
  comm = NULL;
  REFUSED(usp_comm_create_launched(NULL, &comm), USP_ENVIRONMENT, "MPI has ended");
  CHECK(comm == NULL);
  return 0;
}
