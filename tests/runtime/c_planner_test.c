/* SPDX-License-Identifier: Apache-2.0 */
/* Planning from C: the text that the command line prints for the same question, echoed requests asked again,
 * and refusals by status and key. argv[1]: the program usp, where it is built. */
#define _POSIX_C_SOURCE 200809L
#include "c_api_checks.h"

/** All of a stream, to be freed. */
static char* read_all(FILE* stream) {
  size_t size = 0, room = 4096;
  char* text = malloc(room);
  CHECK(text != NULL && stream != NULL);
  for (size_t got; (got = fread(text + size, 1, room - size - 1, stream)) > 0;) {
    size += got;
    if (room - size > 1) continue;
    text = realloc(text, room *= 2);
    CHECK(text != NULL);
  }
  text[size] = '\0';
  return text;
}

static char* read_file(const char* name) {
  FILE* file = fopen(name, "rb");
  char* text = read_all(file);
  fclose(file);
  return text;
}

/** stdout of `usp ARGUMENTS`. */
static char* printed(const char* usp, const char* arguments) {
  char command[2048];
  const int length = snprintf(command, sizeof command, "'%s' %s", usp, arguments);
  CHECK(length > 0 && (size_t)length < sizeof command);
  FILE* pipe = popen(command, "r");
  char* text = read_all(pipe);
  CHECK(pclose(pipe) == 0);
  return text;
}

static char* plan_json(const char* request) {
  char* result = NULL;
  OK(usp_plan_step_json(request, &result));
  CHECK(result != NULL);
  return result;
}

/** The object under the key "request" of a result, to be freed. */
static char* echoed(const char* result) {
  const char* begin = strstr(result, "\"request\": {");
  CHECK(begin != NULL);
  begin = strchr(begin, '{');
  const char* end = begin;
  int depth = 0;
  do depth += (*end == '{') - (*end == '}');
  while (*end++ != '\0' && depth > 0);
  CHECK(depth == 0);
  char* text = calloc((size_t)(end - begin) + 1, 1);
  CHECK(text != NULL);
  memcpy(text, begin, (size_t)(end - begin));
  return text;
}

/** A request of tests/data/plan_requests, and the flags of the same question. */
struct question {
  const char *file, *arguments;
};

static const struct question questions[] = {
    {"defaults.json", "llama-3.1-8b --seq 64k --cluster dgx-h100"},
    {"options.json",
     "qwen3-8b --seq 128k --batch 2 --microbatches 2 --full --optimizer sgd --cluster dgx-h100 --nodes 2"
     " --nic 8x200G --fabric rail --nvlink 400GB/s --ulysses 8 --layout contiguous --recompute full --zero 3"
     " --reserve 0.1 --memory 64GiB --mlp-tile 4k --transport nccl --no-overlap --top 3"},
    {"forward_documents.json",
     "gpt-oss-20b --seq 128k --documents 96k,32k --forward-only --cluster 'node:1 nvswitch gpu:8(h100-sxm)'"
     " --devices 7,5,3,1 --calibration h100_sxm"},
};

static char* request_of(const struct question* question) {
  char name[1024];
  snprintf(name, sizeof name, "%s/plan_requests/%s", USP_TEST_DATA, question->file);
  return read_file(name);
}

static void test_same_as_command_line(const char* usp, const struct question* question) {
  char arguments[1024], *request = request_of(question), *result = plan_json(request);
  snprintf(arguments, sizeof arguments, "plan %s -q --json", question->arguments);
  char* text = printed(usp, arguments);
  CHECK(strcmp(result, text) == 0);
  free(text);
  usp_text_free(result);

  char* plan = NULL;
  OK(usp_plan_step_file(request, &plan));
  snprintf(arguments, sizeof arguments, "plan %s -q -o -", question->arguments);
  text = printed(usp, arguments);
  CHECK(strcmp(plan, text) == 0);
  free(text);
  free(request);
  usp_plan* parsed = NULL;
  OK(usp_plan_parse(plan, 0, &parsed));
  CHECK(usp_plan_ranks(parsed) >= 1);
  usp_plan_destroy(parsed);
  usp_text_free(plan);
}

/** What a result echoes is a request of the same result. Returns it, to be freed. */
static char* asked_again(const char* request) {
  char *result = plan_json(request), *echo = echoed(result), *again = plan_json(echo);
  CHECK(strcmp(result, again) == 0);
  usp_text_free(again);
  usp_text_free(result);
  return echo;
}

static void test_echo(void) {
  /* The cluster's calibration is of another card; no calibration; options of every group. */
  free(
      asked_again("{\"model\": \"llama-3.1-8b\", \"cluster\": \"rtx-4090\", \"workload\": {\"seq\": 8192}}"));
  free(asked_again("{\"model\": \"llama-3.1-8b\", \"cluster\": \"mi300x\", \"workload\": {\"seq\": 32768}}"));
  char* again = NULL;
  char* request = asked_again(
      "{\"model\": \"llama-3.1-8b\", \"cluster\": {\"name\": \"dgx-h100\", \"nodes\": 2},"
      " \"workload\": {\"seq\": 131072, \"training\": false}, \"fixed\": {\"ring\": 2},"
      " \"execution\": {\"transport\": \"nccl\"}, \"max_candidates\": 5}");

  /* The digest is of 2 hosts. */
  char* nodes = strstr(request, "\"nodes\": 2");
  CHECK(nodes != NULL);
  nodes[strlen("\"nodes\": ")] = '1';
  REFUSED(usp_plan_step_json(request, &again), USP_INVALID_INPUT, "/cluster/devices");
  char* devices = strstr(request, "\"devices\": 16");
  CHECK(devices != NULL);
  memcpy(devices, "\"devices\":  8", strlen("\"devices\":  8"));
  REFUSED(usp_plan_step_json(request, &again), USP_INVALID_INPUT, "/cluster/digest");
  free(request);
}

/** The documents themselves in place of their names. */
static void test_inline(void) {
  char* model = read_file(USP_CONFIGS "/models/llama-3.1-8b.json");
  char* cluster = read_file(USP_CONFIGS "/clusters/dgx-h100.json");
  const char* form = "{\"model\": %s, \"cluster\": {\"source\": %s}, \"workload\": {\"seq\": 65536}}";
  const size_t room = strlen(form) + strlen(model) + strlen(cluster) + 1;
  char* request = malloc(room);
  CHECK(request != NULL);
  snprintf(request, room, form, model, cluster);
  char* by_name = request_of(&questions[0]);
  char *result = plan_json(request), *named = plan_json(by_name);
  CHECK(strcmp(strstr(result, "\"best\": {"), strstr(named, "\"best\": {")) == 0);
  usp_text_free(named);
  free(by_name);
  usp_text_free(result);
  free(request);
  free(cluster);
  free(model);
}

/** A request with other text in place of one of its keys. */
static void refused(const char* model, const char* cluster, const char* workload, const char* rest,
                    usp_status status, const char* word) {
  char request[1024], *result = NULL;
  snprintf(request, sizeof request, "{%s%s%s%s}", model, cluster, workload, rest);
  REFUSED(usp_plan_step_json(request, &result), status, word);
  REFUSED(usp_plan_step_file(request, &result), status, word);
  CHECK(result == NULL);
}

static void test_refused(void) {
  char* result = NULL;
  const char* const m = "\"model\": \"llama-3.1-8b\"";
  const char* const c = ", \"cluster\": \"dgx-h100\"";
  const char* const w = ", \"workload\": {\"seq\": 65536}";
  REFUSED(usp_plan_step_json(NULL, &result), USP_USAGE, "request is null");
  REFUSED(usp_plan_step_json("{}", NULL), USP_USAGE, "result is null");
  REFUSED(usp_plan_step_json("no JSON", &result), USP_INVALID_INPUT, "request");
  usp_text_free(NULL);

  refused("", "", "", "", USP_INVALID_INPUT, "model");
  refused(m, "", w, "", USP_INVALID_INPUT, "cluster");
  refused(m, c, "", "", USP_INVALID_INPUT, "workload");
  refused(m, c, ", \"workload\": {}", "", USP_INVALID_INPUT, "seq");
  refused("\"model\": \"-\"", c, w, "", USP_INVALID_INPUT, "/model");
  refused("\"model\": \"llama-9\"", c, w, "", USP_INVALID_INPUT, "llama-9");
  refused("\"model\": {\"hidden_size\": 64}", c, w, "", USP_INVALID_INPUT, "request#/model");
  refused(m, ", \"cluster\": \"dgx-h1000\"", w, "", USP_INVALID_INPUT, "did you mean");
  refused(m, ", \"cluster\": {}", w, "", USP_INVALID_INPUT, "/cluster/source");
  refused(m, ", \"cluster\": {\"name\": \"b200\", \"source\": \"b200\"}", w, "", USP_INVALID_INPUT,
          "/cluster/name");
  refused(m, ", \"cluster\": {\"name\": \"b200\", \"rails\": 8}", w, "", USP_INVALID_INPUT, "rails");
  refused(m, ", \"cluster\": {\"name\": \"b200\", \"nic\": \"fast\"}", w, "", USP_INVALID_INPUT,
          "/cluster': --nic");
  refused(m, ", \"cluster\": {\"name\": \"b200\", \"nodes\": 0}", w, "", USP_INVALID_INPUT, "/cluster/nodes");
  refused(m, ", \"cluster\": {\"name\": \"b200\", \"curves\": [7]}", w, "", USP_INVALID_INPUT,
          "/cluster/curves/0");
  refused(m, c, ", \"workload\": {\"seq\": \"64k\"}", "", USP_INVALID_INPUT, "/workload/seq");
  refused(m, c, ", \"workload\": {\"seq\": 4096, \"batch\": 3, \"microbatches\": 2}", "", USP_INVALID_INPUT,
          "/workload");
  refused(m, c, ", \"workload\": {\"seq\": 4096, \"dtype\": \"fp8\"}", "", USP_INVALID_INPUT,
          "/workload/dtype");
  refused(m, c, w, ", \"sequence\": 4", USP_INVALID_INPUT, "sequence");
  refused(m, c, w, ", \"format\": \"usp.plan\", \"version\": 2", USP_INVALID_INPUT, "/format");
  refused(m, c, w, ", \"version\": 2", USP_INVALID_INPUT, "format");
  refused(m, c, w, ", \"fixed\": {\"method\": \"spiral\"}", USP_INVALID_INPUT, "/fixed/method");
  refused(m, c, w, ", \"fixed\": {\"head_chunks\": 2000}", USP_INVALID_INPUT, "/fixed/head_chunks");
  refused(m, c, w, ", \"fixed\": {\"ring\": 1, \"layout\": \"zigzag\"}", USP_INVALID_INPUT, "/fixed/layout");
  refused(m, c, w, ", \"fixed\": {\"ulysses\": 1, \"order\": \"ring_inner\"}", USP_INVALID_INPUT,
          "/fixed/order");
  refused(m, c, ", \"workload\": {\"seq\": 65536, \"training\": false}",
          ", \"fixed\": {\"recompute\": \"full\"}", USP_INVALID_INPUT, "/fixed/recompute");
  refused(m, c, w, ", \"memory\": {\"reserve_ratio\": 1}", USP_INVALID_INPUT, "/memory/reserve_ratio");
  refused(m, c, w, ", \"execution\": {\"transport\": \"pigeon\"}", USP_INVALID_INPUT, "/execution/transport");
  refused(m, c, w, ", \"fixed\": {\"ring\": 3}", USP_INFEASIBLE, "8 devices");
  refused("\"model\": \"llama-3.1-405b\"", c, ", \"workload\": {\"seq\": 1048576}", "", USP_INFEASIBLE,
          "no plan fits");
}

/** One attention call: the text of the command line, and refusals by key. */
static void test_attention(const char* usp) {
  const char* const request =
      "{\"cluster\": {\"source\": \"dgx-h100\", \"nodes\": 2}, \"shape\": {\"tokens\": 131072, "
      "\"query_heads\": 32,"
      " \"kv_heads\": 8, \"head_dim_qk\": 128}, \"window\": 4096, \"backend\": \"mma\", \"sink\": true, "
      "\"documents\": [65536, "
      "65536],"
      " \"fixed\": {\"ring\": 2}, \"max_candidates\": 3}";
  char* result = NULL;
  OK(usp_plan_attention_json(request, &result));
  if (usp != NULL) {
    char* text =
        printed(usp,
                "plan attention -q --json --cluster dgx-h100 --nodes 2 --seq 131072 --heads 32 --kv-heads 8"
                " --head-dim 128 --window 4096 --sinks --documents 65536,65536 --ring 2 --top 3"
                " --backend mma");
    CHECK(strcmp(result, text) == 0);
    free(text);
  }
  usp_text_free(result);
  OK(usp_plan_attention_json(
      "{\"ranks\": 4, \"shape\": {\"tokens\": 64, \"query_heads\": 4, \"head_dim_qk\": 8}}", &result));
  usp_text_free(result);
  OK(usp_plan_attention_json(
      "{\"cluster\": \"h200\", \"calibration\": \"h200_sxm-pair\", \"shape\": {\"tokens\": 16384,"
      " \"query_heads\": 16, \"head_dim_qk\": 128}}",
      &result));
  CHECK(strstr(result, "\"calibration\": \"h200_sxm-pair\"") != NULL);
  CHECK(strstr(result, "\"backend\": \"hopper\"") != NULL);  // priced beside others: it was measured
  if (usp != NULL) {
    char* text = printed(usp,
                         "plan attention -q --json --cluster h200 --calibration h200_sxm-pair --seq 16384"
                         " --heads 16 --kv-heads 16 --head-dim 128");
    CHECK(strcmp(result, text) == 0);
    free(text);
  }
  usp_text_free(result);
  const char* const shape = "\"shape\": {\"tokens\": 64, \"query_heads\": 4, \"head_dim_qk\": 8}";
  const struct {
    const char *begin, *word;
  } wrong[] = {{"", "/ranks"},
               {"\"ranks\": 4, \"cluster\": \"b200\", ", "/cluster"},
               {"\"ranks\": 4, \"window\": 3, \"causal\": false, ", "/window"},
               {"\"ranks\": 4, \"documents\": [1, 2], ", "/documents"},
               {"\"ranks\": 4, \"backend\": \"abacus\", ", "/backend"},
               {"\"ranks\": 4, \"fixed\": {\"ring\": 1, \"layout\": \"zigzag\"}, ", "/fixed/layout"},
               {"\"ranks\": 4, \"calibration\": \"h200_sxm\", ", "/calibration"},
               {"\"cluster\": \"b200\", \"calibration\": \"no_such\", ", "no_such"},
               {"\"ranks\": 4, \"rows\": 4, ", "rows"}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    char text[512];
    snprintf(text, sizeof text, "{%s%s}", wrong[i].begin, shape);
    REFUSED(usp_plan_attention_json(text, &result), USP_INVALID_INPUT, wrong[i].word);
  }
  REFUSED(usp_plan_attention_json(NULL, &result), USP_USAGE, "request is null");
}

int main(int argc, char** argv) {
  for (size_t i = 0; argc > 1 && i < sizeof questions / sizeof questions[0]; ++i)
    test_same_as_command_line(argv[1], &questions[i]);
  test_echo();
  test_inline();
  test_attention(argc > 1 ? argv[1] : NULL);
  test_refused();
  return 0;
}
