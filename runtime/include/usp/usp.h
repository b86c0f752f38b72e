/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The C API of usp: exact attention on a ring x ulysses mesh. C99.
 *
 * Functions return a status; on failure usp_last_error() of the same thread says what is wrong and what to
 * do, and nothing is written to results. A null pointer where one is not said to be allowed is USP_USAGE.
 * Handles are opaque; *_destroy accepts null. *_init functions are local; size is sizeof the struct. Plans
 * may be read by many threads. A communicator and all that is made on it serve one rank and take one call at
 * a time, from any thread (under MPI from the thread that initialized it); usp_batch_create says what may
 * run beside it. */
#ifdef __cplusplus
extern "C" {
#endif

/** The exit codes of the command line. */
typedef enum usp_status {
  USP_OK = 0,
  USP_INTERNAL = 1,      /**< a broken invariant of the library */
  USP_USAGE = 2,         /**< arguments that cannot be understood or combined */
  USP_INVALID_INPUT = 3, /**< input that is not what it claims to be, or does not fit the plan */
  USP_INFEASIBLE = 4,    /**< nothing legal, or nothing that fits */
  USP_ENVIRONMENT = 5,   /**< the machine or another rank failed, memory ran out, ranks disagree */
  USP_VERIFICATION = 6   /**< a check against a reference failed */
} usp_status;

/** Element types. Sums (lse, and gradients where wanted) are fp64 for fp64 tensors and fp32 for others. */
enum { USP_BF16 = 0, USP_FP16 = 1, USP_FP32 = 2, USP_FP64 = 3 };
/** How the ring axis exchanges keys and values. */
enum { USP_RING = 0, USP_RING_DIRECT = 1, USP_ALL_GATHER_KV = 2, USP_DOUBLE_RING = 3 };
/** Which tokens a ring row owns. */
enum { USP_CONTIGUOUS = 0, USP_ZIGZAG = 1, USP_STRIPED = 2, USP_BALANCED = 3 };
/** What computes. */
enum {
  USP_BACKEND_CPU = 0,
  USP_BACKEND_MMA = 1,
  USP_BACKEND_CUDNN = 2,
  USP_BACKEND_HOPPER = 3,
  USP_BACKEND_HOPPER_CUDNN = 4 /**< forward by hopper, backward by cudnn */
};
/** What carries payload between GPUs. */
enum { USP_TRANSPORT_COPY_ENGINE = 0, USP_TRANSPORT_NCCL = 1 };
/** How partial key and value gradients reach their owner. */
enum { USP_DKV_CIRCULATE = 0, USP_DKV_DIRECT = 1, USP_DKV_CYCLE = 2 };
enum { USP_FORWARD = 0, USP_BACKWARD = 1 };
/** A position difference that no mask reaches. */
#define USP_UNBOUNDED (INT64_C(1) << 40)

typedef struct usp_plan usp_plan;
typedef struct usp_comm usp_comm;
typedef struct usp_attention usp_attention;
typedef struct usp_engine usp_engine;
typedef struct usp_batch usp_batch;

/** "major.minor.patch" of the library. */
const char* usp_version(void);
/** What the last call that failed on this thread found wrong; empty when none did. Thread-local: valid until
 * the next call that fails on this thread. */
const char* usp_last_error(void);
/** "ok", "usage", ...; "unknown" for other numbers. */
const char* usp_status_name(int status);

/* Faults ------------------------------------------------------------------------------------------------ */

/** Kinds of usp_fault. */
enum {
  USP_FAULT_COMMUNICATION = 0, /**< ranks that did not arrive, failed or ended the job */
  USP_FAULT_DISAGREEMENT = 1 /**< ranks that hold another value than most; the communicator remains usable */
};

/** An error between ranks by its parts. Later versions add fields at the end only. */
typedef struct usp_fault {
  size_t size;
  int32_t kind;
  int32_t tick;          /**< of the schedule; -1: outside of one */
  int32_t rank;          /**< that noticed; -1: unknown, and for a disagreement */
  int32_t rank_count;    /**< 0 and more */
  const int32_t* ranks;  /**< the ranks that `kind` describes: of the job, or those of the communicator that
                              compared values */
  const char* operation; /**< "barrier", "a forward exchange", ...; empty for a disagreement */
  const char* field;     /**< the value that differs: "batch", "plan", ...; else empty */
} usp_fault;

/** Local: the error of usp_last_error() where that was a fault between ranks. fault->size must be set;
 * pointers are valid until the next call that fails on this thread. USP_USAGE, with usp_last_error() as it
 * was, where the last error was another one or none. */
usp_status usp_last_fault(usp_fault* fault);

/* Plans ------------------------------------------------------------------------------------------------- */

/** One attention call. Fill with usp_attention_desc_init, which puts the values in brackets; those marked *
 * must be set. Later versions add fields at the end only. */
typedef struct usp_attention_desc {
  size_t size;         /**< sizeof the struct the caller was compiled with */
  int64_t batch;       /**< rows that share the documents [1] */
  int64_t q_tokens;    /**< * greatest count of tokens of a step, over all ranks */
  int64_t kv_tokens;   /**< [0: q_tokens] */
  int32_t query_heads; /**< * */
  int32_t kv_heads;    /**< divides query_heads [0: query_heads] */
  int32_t head_dim_qk; /**< * */
  int32_t head_dim_v;  /**< [0: head_dim_qk] */
  int32_t dtype;       /**< * of q, k, v and out */
  int32_t ring;        /**< mesh: ring x ulysses ranks, rank = ring row * ulysses + column [1] */
  int32_t ring_outer;  /**< divides ring; above 1 with USP_DOUBLE_RING only [1] */
  int32_t ulysses;     /**< at most query_heads; need not divide anything [1] */
  int32_t method;      /**< [USP_RING] */
  int32_t layout;      /**< [USP_ZIGZAG] */
  int32_t dkv_return;  /**< [USP_DKV_CIRCULATE] */
  int32_t head_chunks; /**< heads are exchanged in so many parts [1] */
  int64_t diff_min;    /**< a query at x sees a key at y iff diff_min <= x - y <= diff_max: causal is 0, */
  int64_t diff_max;    /**< USP_UNBOUNDED; a window of W: 0, W - 1 [-USP_UNBOUNDED, USP_UNBOUNDED] */
  int32_t prune;       /**< nonzero: send only keys that a receiver can see [0] */
  int32_t sink;        /**< nonzero: one logit per query head joins the softmax [0] */
  int32_t return_lse;  /**< nonzero: forward returns the log-sum-exp [0] */
  int32_t alibi;       /**< nonzero: a slope per query head [0] */
  int32_t save_exchanged_qkv;  /**< nonzero: backward reuses q, k, v as forward exchanged them [1] */
  int32_t backend;             /**< that the schedule is made for [USP_BACKEND_CPU] */
  double scale;                /**< of q.k [0: 1 / sqrt(head_dim_qk)] */
  double softcap;              /**< [0: none] */
  double dropout;              /**< probability, below 1 [0] */
  int64_t block_tokens;        /**< edge of the blocks of a per-head pattern [0: no pattern] */
  const int64_t* replicated_q; /**< tokens that every rank holds: begin, end pairs, ascending [null] */
  int64_t replicated_q_count;  /**< pairs [0] */
  const int64_t* replicated_k;
  int64_t replicated_k_count;
  int32_t gated;       /**< nonzero: attend remote blocks in one call with the own one, which awaits each as
                        * it lands; for USP_ALL_GATHER_KV [0] */
  int32_t gate_phases; /**< calls of a gated forward pass: the own block, then growing lists of remote ones;
                        * 0 is as 1 [1] */
} usp_attention_desc;

usp_status usp_attention_desc_init(usp_attention_desc* desc, size_t size);
/** Local. Checks the fields (USP_USAGE) and copies them. */
usp_status usp_plan_create(const usp_attention_desc* desc, usp_plan** plan);
/** Local. Text of a plan file (`usp plan -o`), of which layer entry `layer` (0 for `usp plan attention`). */
usp_status usp_plan_parse(const char* text, int32_t layer, usp_plan** plan);
/** The fields of a plan. desc->size must be set; the replicated_* point into the plan. */
usp_status usp_plan_get_desc(const usp_plan* plan, usp_attention_desc* desc);
/** Whether this library was built with a backend (USP_BACKEND_CPU, ...): 1 or 0; -1 for a number that names
 * none. What a backend loads (a driver, cuDNN) may still be missing on this machine. */
int32_t usp_backend_built(int32_t backend);
/** Ranks of the mesh; 0 for null. */
int32_t usp_plan_ranks(const usp_plan* plan);
void usp_plan_destroy(usp_plan* plan);

/* Ranks ------------------------------------------------------------------------------------------------- */

/** What a rank runs; returns a usp_status. */
typedef int (*usp_rank_function)(usp_comm* comm, void* user);

/** Runs `function` on `ranks` threads, each with a communicator that lives for the call; joins them. A rank
 * that returns other than USP_OK ends the others (their calls fail with USP_ENVIRONMENT) and is what this
 * returns, with its usp_last_error() and usp_last_fault(). A wait of 60 s for a rank ends the job. */
usp_status usp_run_threads(int32_t ranks, usp_rank_function function, void* user);
/** One rank, no peers. */
usp_status usp_comm_create_serial(usp_comm** comm);

/** How ranks of processes wait and meet. Fill with usp_comm_options_init; the same on every rank. */
typedef struct usp_comm_options {
  size_t size;
  double watchdog_s;     /**< a wait for another rank that lasts longer ends the job [60] */
  double start_s;        /**< how long ranks wait for one another to start [0: watchdog_s] */
  int32_t trust_network; /**< nonzero: sockets without a secret may meet beyond loopback [0] */
  int32_t reserved;      /**< 0 */
  /** Asked about every tenth of a second by a call that waits for other ranks, on the thread that made the
   * call; nonzero ends the job (USP_ENVIRONMENT on all ranks, the text says that a rank was interrupted).
   * While ranks meet over sockets too (MPI_Init does not ask); the end of a communicator then waits no
   * longer. For a host language that handles signals between calls. Must not call usp [null] */
  int32_t (*interrupted)(void* context);
  void* context; /**< given to it; may be null */
} usp_comm_options;

usp_status usp_comm_options_init(usp_comm_options* options, size_t size);
/** usp_run_threads with options, of which watchdog_s and interrupted count; null: the defaults. */
usp_status usp_run_threads_with(int32_t ranks, const usp_comm_options* options, usp_rank_function function,
                                void* user);

/** This process as a rank of a job over TCP. Fill with usp_socket_job_init; those marked * must be set. */
typedef struct usp_socket_job {
  size_t size;
  const char* host;   /**< of rank 0, a name or a numeric address; may be null with one_host * */
  int32_t port;       /**< where rank 0 listens; 0 on rank 0: a free one, for on_listening [0] */
  int32_t rank;       /**< * */
  int32_t ranks;      /**< * */
  int32_t one_host;   /**< nonzero: all ranks are on this host and meet on its loopback [0] */
  uint64_t digest;    /**< the same on all ranks; ranks of another one are refused [0] */
  const char* secret; /**< ranks prove that they know it, it is not sent; null or empty: none, for ranks that
                           meet on loopback and for trust_network [null] */
  /** Rank 0 of several calls it once, on the calling thread, with the port it listens at and before it waits
   * for the others, so that a launcher can send the port to them. Null where port is set [null] */
  void (*on_listening)(void* context, int32_t port);
  void* context;
} usp_socket_job;

usp_status usp_socket_job_init(usp_socket_job* job, size_t size);
/** Collective: the ranks meet at rank 0. options null: the defaults. USP_ENVIRONMENT where this rank is
 * refused (another digest or secret, a rank given twice), where ranks would meet over a network without a
 * secret, where the port is taken, and where ranks do not arrive in time (rank 0's usp_last_fault names
 * those). */
usp_status usp_comm_create_sockets(const usp_socket_job* job, const usp_comm_options* options,
                                   usp_comm** comm);
/** Collective: this process as a rank of the job that mpirun or srun (MPI), or torchrun (sockets) started; a
 * serial communicator without a launcher. options null: the defaults. USP_ENVIRONMENT as
 * usp_comm_create_sockets, and where MPI started a build without MPI. Under MPI: one such communicator per
 * process, which with all that is made on it belongs to the thread that made it, the one that initialized
 * MPI; it initializes and ends MPI where the application has not initialized it, and then a call of MPI that
 * waits longer than start_s, or a fault while the ranks meet, ends the process. */
usp_status usp_comm_create_launched(const usp_comm_options* options, usp_comm** comm);
/** Ends a communicator, after all that was made on it. Does nothing to one that usp_run_threads or an engine
 * lent. Of processes: collective. Returns once all ranks are here, so that none leaves while another may
 * still fail; a barrier before reports a failure. Over sockets it gives up on ranks that stay silent for
 * watchdog_s, and soon once a rank has died or the job has failed. Under MPI it waits as long as all
 * processes live; once the job has failed, it ends them all (MPI_Abort) unless the application initialized
 * MPI. */
void usp_comm_destroy(usp_comm* comm);
/** Collective over comm: every rank gives the same ranks of comm, whose rank ranks[i] is rank i of the group.
 * *group is null on ranks that are not listed. Destroyed before comm, locally. USP_USAGE for repeated and
 * unknown ranks, USP_ENVIRONMENT where the lists differ. */
usp_status usp_comm_group(usp_comm* comm, const int32_t* ranks, int32_t count, usp_comm** group);
/** Local: ends the whole job, also through a group. This rank's next call and those of all others, waiting
 * ones too, fail with USP_ENVIRONMENT and the reason (up to 1,000 bytes); the first failure wins. */
usp_status usp_comm_abort(usp_comm* comm, const char* reason);
/** -1 for null. */
int32_t usp_comm_rank(const usp_comm* comm);
int32_t usp_comm_size(const usp_comm* comm);
/** Collective. */
usp_status usp_comm_barrier(usp_comm* comm);
/** Collective: sums in rank order, in place; the same bits on every rank. */
usp_status usp_comm_all_reduce_f32(usp_comm* comm, float* data, int64_t count);
usp_status usp_comm_all_reduce_f64(usp_comm* comm, double* data, int64_t count);
/** Collective: `bytes` of each rank, the same count on all, to `all` in rank order. */
usp_status usp_comm_all_gather(usp_comm* comm, const void* mine, void* all, int64_t bytes);
/** Collective: `bytes` of rank `root` to all. */
usp_status usp_comm_broadcast(usp_comm* comm, void* data, int64_t bytes, int32_t root);

/* Attention --------------------------------------------------------------------------------------------- */

/** A tensor [batch][row][head][width]: width is contiguous, the other strides are in elements, 0 or more.
 * Counts follow from plan and batch: rows are the rank's home tokens, heads are all of the plan's. Inputs may
 * overlap one another. A result's elements have a place each, apart from every input and every other result
 * of the call; tensors may interleave (q, k and v of one packed tensor). Calls refuse others (USP_USAGE). */
typedef struct usp_tensor {
  void* data; /**< inputs are only read */
  int32_t dtype;
  int64_t batch_stride;
  int64_t row_stride;
  int64_t head_stride;
} usp_tensor;

/** A batch-first contiguous tensor of so many rows, heads and width. */
usp_tensor usp_tensor_contiguous(void* data, int32_t dtype, int64_t rows, int64_t heads, int64_t width);

/** What both passes read. Per-head arrays are indexed by global query head and are the same on every rank. */
typedef struct usp_attention_inputs {
  size_t size;
  usp_tensor q, k, v;
  const void* sink;           /**< logits, iff the plan has a sink */
  const double* alibi_slopes; /**< iff the plan has ALiBi */
  const uint8_t* blocks; /**< [head][block row][block column], nonzero: may see; iff the plan has blocks */
  int64_t block_rows;    /**< at least ceil(query tokens / block_tokens) */
  int64_t block_columns;
  uint64_t dropout_seed; /**< read where the plan has dropout */
  int32_t sink_dtype;    /**< [USP_FP64] */
  int32_t reserved;      /**< 0 */
} usp_attention_inputs;

/** Written by backward. Types: the inputs', or that of sums. Gradients of replicated tokens and of sinks are
 * partial: their gradient is the sum over ranks. */
typedef struct usp_attention_gradients {
  size_t size;
  usp_tensor dq, dk, dv;
  void* d_sink;         /**< per query head, added to; iff the plan has a sink. Apart from all else that the
                             call reads or writes, and aligned for its type, as `sink` is */
  int32_t d_sink_dtype; /**< [USP_FP64] */
  int32_t reserved;     /**< 0 */
} usp_attention_gradients;

/** Bytes of the last call of a pass on this rank; planned ones are known from set_batch on. */
typedef struct usp_pass_record {
  size_t size;
  int64_t planned_sent;
  int64_t planned_received;
  int64_t executed_sent;
  int64_t executed_received;
  int32_t equal; /**< 1: planned and executed agree for every tick and peer */
  int32_t ticks;
  int64_t workspace_bytes;
  double host_wait_s; /**< of this rank's thread, after the steps of the ticks: for messages of other ranks,
                         and to apply them. A rank that comes late shows on the others */
} usp_pass_record;

/* Zero all fields but size and types. */
usp_status usp_attention_inputs_init(usp_attention_inputs* inputs, size_t size);
usp_status usp_attention_gradients_init(usp_attention_gradients* gradients, size_t size);

/** Collective. The communicator's size is the plan's and it outlives the attention; the plan is copied. */
usp_status usp_attention_create(const usp_plan* plan, usp_comm* comm, usp_attention** attention);
/** The same of forward alone, on all ranks: the workspace is forward's, backward is refused. */
usp_status usp_attention_create_forward(const usp_plan* plan, usp_comm* comm, usp_attention** attention);
void usp_attention_destroy(usp_attention* attention);

/** Collective: the documents of the steps that follow, cu_seqlens[0] = 0 to cu_seqlens[documents] in tokens,
 * at most those of the plan. Null and 0: one document over all tokens of the plan. Local memory follows. */
usp_status usp_attention_set_batch(usp_attention* attention, const int64_t* cu_seqlens, int64_t documents);
/** Collective: the same for queries and keys of different lengths. Query token t of document i stands at
 * position t + shift[i] of the key tokens; shift null: last query of a document at its last key. */
usp_status usp_attention_set_cross_batch(usp_attention* attention, const int64_t* cu_q, const int64_t* cu_k,
                                         const int64_t* shift, int64_t documents);
/** Global tokens of this rank's rows, in order; valid until the next set_batch. Either result may be null. */
usp_status usp_attention_q_tokens(const usp_attention* attention, const int64_t** tokens, int64_t* count);
usp_status usp_attention_kv_tokens(const usp_attention* attention, const int64_t** tokens, int64_t* count);

/** Collective. lse: width 1, the type of sums; null unless the plan returns it. */
usp_status usp_attention_forward(usp_attention* attention, const usp_attention_inputs* inputs,
                                 const usp_tensor* out, const usp_tensor* lse);
/** Collective: of the last forward, with its inputs and out as they were; an attention holds the state of one
 * call. USP_USAGE where q, k or v lie elsewhere than in that forward, and where set_batch came in between. */
usp_status usp_attention_backward(usp_attention* attention, const usp_attention_inputs* inputs,
                                  const usp_tensor* d_out, const usp_attention_gradients* gradients);

/** record->size must be set. */
usp_status usp_attention_record(const usp_attention* attention, int32_t pass, usp_pass_record* record);
/** Bytes that start in one tick to (sent) or from one peer. Either pair of results may be null. */
usp_status usp_attention_traffic(const usp_attention* attention, int32_t pass, int32_t tick, int32_t peer,
                                 int64_t planned[2], int64_t executed[2]);

/* Layers that share schedules and workspace -------------------------------------------------------------- */

/** Source of the memory that an engine holds: workspace and scratch of kernels. Both functions, or none (the
 * heap, or plain device memory). Workspace that other processes open (copy engines between processes) is
 * always the library's own. Called within calls of the engine on the thread that makes them, and by
 * usp_engine_destroy; must not call the engine. */
typedef struct usp_allocator {
  /** Memory on a boundary of 256 bytes; null where there is no room (the call then fails with
   * USP_ENVIRONMENT). bytes > 0; device: ordinal of the GPU, -1 for host memory; stream: the CUDA stream
   * whose work uses the memory, null on the host. */
  void* (*allocate)(void* context, int64_t bytes, int32_t device, void* stream);
  /** What allocate gave, with its arguments. */
  void (*release)(void* context, void* memory, int64_t bytes, int32_t device, void* stream);
  void* context; /**< given to all; may be null */
  /** Called before the library takes device memory that is not this allocator's: memory that the allocator
   * holds for reuse should go back to the device. Null: nothing to give back. */
  void (*release_unused)(void* context);
} usp_allocator;

/** What runs attention on one rank of a mesh: a workspace that all layers share, and the batches of the last
 * steps. Fill with usp_engine_desc_init; those marked * must be set. */
typedef struct usp_engine_desc {
  size_t size;
  int32_t ring;            /**< mesh of the plans: ring x ulysses ranks * */
  int32_t ring_outer;      /**< as usp_attention_desc [1] */
  int32_t ulysses;         /**< * */
  int32_t compare_inputs;  /**< nonzero: before each forward, ranks compare what must be the same on all:
                                per-head lists, dropout seed and layer, replicated tokens [0] */
  usp_allocator allocator; /**< [the heap, or plain device memory] */
  int32_t device;          /**< ordinal of the rank's GPU; -1: the host [-1] */
  int32_t backend;         /**< USP_BACKEND_CPU on the host, another on a GPU [USP_BACKEND_CPU] */
  int32_t deterministic;   /**< nonzero: gradients repeat bit for bit on a GPU too [0] */
  int32_t ring_transport;  /**< between GPUs, per axis of the mesh [USP_TRANSPORT_COPY_ENGINE] */
  int32_t ulysses_transport;
  int32_t forward_only; /**< nonzero on all ranks: the workspace is forward's, backward is refused [0] */
  int32_t
      release_scratch; /**< nonzero, with an allocator: kernels' scratch, and workspace that peers do not
                            reach, go back to it after each call, also one that a CUDA graph captures [0] */
} usp_engine_desc;

usp_status usp_engine_desc_init(usp_engine_desc* desc, size_t size);
/** Collective over comm, whose rank p is the mesh's rank p and which outlives the engine. On a GPU, tensors,
 * per-head arrays and saved memory of all calls lie in its memory. USP_ENVIRONMENT without that GPU, cuDNN or
 * NCCL, and where copy engines do not reach a peer's GPU. */
usp_status usp_engine_create(const usp_engine_desc* desc, usp_comm* comm, usp_engine** engine);
/** Batches and saved states of the engine end with it. */
void usp_engine_destroy(usp_engine* engine);
/** The ranks of this rank's ring group (those of its ulysses column, by ring row) and of its ulysses group;
 * lent, and valid as long as the engine. */
usp_status usp_engine_ring_comm(usp_engine* engine, usp_comm** comm);
usp_status usp_engine_ulysses_comm(usp_engine* engine, usp_comm** comm);
/** Local: what the making of the transports found out that the user should know, a line each; empty: nothing.
 * Valid as long as the engine. */
usp_status usp_engine_notes(usp_engine* engine, const char** notes);
/** Local: fails with USP_ENVIRONMENT and the reason when the job has failed. On GPUs a failed job lets
 * streams go on with void results: ask after a stream was synchronized, above all after CUDA graphs. */
usp_status usp_engine_check(usp_engine* engine);
/** Bytes of the shared workspace in a call, the greatest so far; -1 for null. */
int64_t usp_engine_workspace_bytes(const usp_engine* engine);

/** Collective: the documents of one step, the same on every rank, as usp_attention_set_batch takes them, and
 * the seed of its dropout (read where a plan has dropout). Shared by all layers and passes of the step; the
 * last 8 are kept, so documents that repeat cost an agreement alone. On threads and TCP another thread may
 * call this while the engine's runs layers; one call at a time, in the same order on every rank. */
usp_status usp_batch_create(usp_engine* engine, const int64_t* cu_seqlens, int64_t documents,
                            uint64_t dropout_seed, usp_batch** batch);
/** Collective: the same for queries and keys of different lengths, as usp_attention_set_cross_batch. */
usp_status usp_batch_create_cross(usp_engine* engine, const int64_t* cu_q, const int64_t* cu_k,
                                  const int64_t* shift, int64_t documents, uint64_t dropout_seed,
                                  usp_batch** batch);
/** Local: other documents over the tokens of `of`, which end wherever its documents do, for layers that
 * attend within parts of them (chunks). No agreement: every rank derives the same from the same batch.
 * Dropout seed and engine are those of `of`. USP_INVALID_INPUT for documents that cross a border of `of` or
 * hold another number of tokens. */
usp_status usp_batch_derive(const usp_batch* of, const int64_t* cu_seqlens, int64_t documents,
                            usp_batch** batch);
/** Collective, on the connections of usp_batch_create and in the same order with it: compares a value that
 * must be the same on all ranks, such as a digest of the sample that a batch describes. USP_ENVIRONMENT where
 * one differs; usp_last_fault then has `name` as its field and says which ranks. */
usp_status usp_engine_agree(usp_engine* engine, const char* name, uint64_t value);
void usp_batch_destroy(usp_batch* batch);

/** How a mesh shares the tokens of a step, before any batch exists. Fill with usp_layout_desc_init; those
 * marked * must be set. */
typedef struct usp_layout_desc {
  size_t size;
  int32_t kind;              /**< USP_CONTIGUOUS, ... [USP_ZIGZAG] */
  int32_t ring;              /**< ring x ulysses ranks [1] */
  int32_t ulysses;           /**< [1] */
  int32_t reserved;          /**< 0 */
  int64_t tokens;            /**< * of all ranks */
  const int64_t* cu_seqlens; /**< as usp_batch_create takes them [null: one document] */
  int64_t documents;         /**< [0] */
} usp_layout_desc;

usp_status usp_layout_desc_init(usp_layout_desc* layout, size_t size);
/** Local: global tokens that a rank holds, in order. Writes at most `room` of them to `list` (null where room
 * is 0), and to *count how many there are: ask with room 0 first. */
usp_status usp_layout_tokens(const usp_layout_desc* layout, int32_t rank, int64_t* list, int64_t room,
                             int64_t* count);

/** What a plan needs on this rank for one batch. */
typedef struct usp_batch_sizes {
  size_t size;
  int64_t q_rows;           /**< home rows of q, out, lse and their gradients */
  int64_t kv_rows;          /**< of k and v */
  int64_t saved_bytes;      /**< per forward in flight */
  int64_t workspace_bytes;  /**< of the engine's workspace, shared */
  int32_t backward_reads_q; /**< 0: the memory of q may be freed after forward; k, v and out alike */
  int32_t backward_reads_k;
  int32_t backward_reads_v;
  int32_t backward_reads_out;
} usp_batch_sizes;

/** Local; prepares the plan for the batch where no call has yet. sizes->size must be set. */
usp_status usp_batch_get_sizes(const usp_batch* batch, const usp_plan* plan, usp_batch_sizes* sizes);
/** Local: global tokens of this rank's rows, in order; valid as long as the batch. */
usp_status usp_batch_q_tokens(const usp_batch* batch, const usp_plan* plan, const int64_t** tokens,
                              int64_t* count);
usp_status usp_batch_kv_tokens(const usp_batch* batch, const usp_plan* plan, const int64_t** tokens,
                               int64_t* count);

/** One forward or backward of one layer. */
typedef struct usp_call {
  size_t size;
  void* saved;         /**< the caller's, on a boundary of 256 bytes (64 on the host); null: no backward will
                            follow */
  int64_t saved_bytes; /**< at least usp_batch_sizes.saved_bytes */
  int64_t layer;       /**< number of the layer: layers of one step drop different pairs [0] */
  uint64_t forward_id; /**< written by forward, given to its backward [0] */
  int32_t retain;      /**< nonzero: another backward of the same forward may follow [0] */
  int32_t untracked;   /**< nonzero: the engine remembers nothing of this forward. saved alone holds it: any
                            number of backward passes may follow, or none, and the caller answers for giving
                            them the forward's inputs and layer. forward_id and retain are 0 [0] */
  void* stream; /**< CUDA stream of the engine's GPU that takes the work (cudaStreamLegacy for CUDA's default
                     one); calls on different streams run one after another. USP_USAGE on the host and
                     for a stream of another GPU [null: the engine's own] */
} usp_call;

usp_status usp_call_init(usp_call* call, size_t size);

/** Collective: forward of one layer. On a GPU the work is enqueued when it returns. call->saved holds the
 * state for its backward: any number of forwards may be in flight, and backward passes follow in any order.
 * The content may be copied elsewhere in between (offloading): backward reads call->saved. out, lse and
 * inputs as usp_attention_forward; the inputs' dropout_seed must be 0, the batch has it. */
usp_status usp_attend(usp_engine* engine, const usp_plan* plan, const usp_batch* batch,
                      const usp_attention_inputs* inputs, const usp_tensor* out, const usp_tensor* lse,
                      usp_call* call);
/** Collective: backward of the forward that wrote call->forward_id, with its plan, batch, inputs and layer.
 * `out` is what forward wrote. USP_USAGE for another plan or batch, where the plan has dropout for another
 * layer, and where backward has run already (usp_call.retain); an untracked call is not compared. */
usp_status usp_attend_grad(usp_engine* engine, const usp_plan* plan, const usp_batch* batch,
                           const usp_attention_inputs* inputs, const usp_tensor* out, const usp_tensor* d_out,
                           const usp_attention_gradients* gradients, usp_call* call);
/** Local: no backward will follow the forward. Unknown ids are ignored. */
void usp_forward_drop(usp_engine* engine, uint64_t forward_id);
/** Of the last call of a pass with plan and batch. record->size must be set. */
usp_status usp_batch_record(usp_engine* engine, const usp_plan* plan, const usp_batch* batch, int32_t pass,
                            usp_pass_record* record);

#ifdef __cplusplus
}
#endif

#include "usp/planning.h"
