/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Ranks as processes of one host, from C: the including file asks for POSIX.1-2008 before its headers. */
#include "c_api_checks.h"

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3 };

/* Of one rank: where it meets the others, and a pipe that ends once no other rank lives. */
typedef struct rank_job {
  int32_t rank;
  int32_t port; /* 0: rank 0 sends the one it got */
  int port_pipe[2], life_pipe[2];
} rank_job;

typedef void (*process_function)(rank_job* job);

static inline void send_port(void* context, int32_t port) {
  const rank_job* job = context;
  CHECK(port > 0);
  for (int peer = 1; peer < RANKS; ++peer)
    CHECK(write(job->port_pipe[1], &port, sizeof port) == (ssize_t)sizeof port);
}

/* The job of this rank as rank 0's callback completes it. */
static inline usp_socket_job socket_job(rank_job* job) {
  usp_socket_job own;
  OK(usp_socket_job_init(&own, sizeof own));
  own.host = "127.0.0.1", own.rank = job->rank, own.ranks = RANKS, own.digest = 7;
  if (job->rank == 0)
    own.on_listening = send_port, own.context = job;
  else
    CHECK(read(job->port_pipe[0], &own.port, sizeof own.port) == (ssize_t)sizeof own.port);
  return own;
}

static inline usp_comm_options comm_options(double watchdog_s) {
  usp_comm_options options;
  OK(usp_comm_options_init(&options, sizeof options));
  options.watchdog_s = watchdog_s;
  options.start_s = 60;
  return options;
}

static inline usp_comm* meet(rank_job* job, double watchdog_s) {
  const usp_socket_job own = socket_job(job);
  const usp_comm_options options = comm_options(watchdog_s);
  usp_comm* comm = NULL;
  OK(usp_comm_create_sockets(&own, &options, &comm));
  CHECK(usp_comm_rank(comm) == job->rank && usp_comm_size(comm) == RANKS);
  return comm;
}

/* Returns when all other ranks have ended. */
static inline void wait_for_end(rank_job* job) {
  char byte;
  close(job->life_pipe[1]);
  CHECK(read(job->life_pipe[0], &byte, 1) == 0);
}

/* Runs `function` in a process per rank; all end with status 0, `killed` (-1: none) by SIGKILL. */
static inline void run_processes(process_function function, int32_t port, int killed) {
  rank_job job = {0, port, {-1, -1}, {-1, -1}};
  pid_t children[RANKS];
  CHECK(pipe(job.port_pipe) == 0 && pipe(job.life_pipe) == 0);
  for (job.rank = 0; job.rank < RANKS; ++job.rank) {
    children[job.rank] = fork();
    CHECK(children[job.rank] >= 0);
    if (children[job.rank] > 0) continue;
    if (job.rank != 0) close(job.port_pipe[1]);
    function(&job);
    exit(0);
  }
  close(job.port_pipe[0]), close(job.port_pipe[1]), close(job.life_pipe[0]), close(job.life_pipe[1]);
  int failed = 0;
  for (int rank = 0; rank < RANKS; ++rank) {
    int status = 0;
    CHECK(waitpid(children[rank], &status, 0) == children[rank]);
    const int as_expected = rank == killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                           : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!as_expected) fprintf(stderr, "rank %d ended with wait status %d\n", rank, status), failed = 1;
  }
  CHECK(!failed);
}
