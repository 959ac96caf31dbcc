/* The C interface, compiled as C99: results, statuses, texts, and that nothing else can come out of it. */
#include "sparse_mla/sparse_mla.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define EXPECT(condition)                                           \
  do {                                                              \
    if (!(condition)) {                                             \
      printf("%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                   \
    }                                                               \
  } while (0)

static void expect_text(const char* got, const char* wanted, int line) {
  if (strcmp(got, wanted) != 0) {
    printf("%s:%d: got \"%s\", expected \"%s\"\n", __FILE__, line, got, wanted);
    ++failures;
  }
}
#define EXPECT_TEXT(got, wanted) expect_text(got, wanted, __LINE__)

static float from_bfloat16(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

enum { S_Q = 1, H_Q = 2, D = 64, S_KV = 3, TOPK = 3, D_V = 4 };

/* e4m3fn codes of 1, 2 and 0: kv rows 0 and 2 are all 1 and all 2, row 1 is NaN and no index names it. */
static unsigned char q_data[S_Q * H_Q * D];
static unsigned char kv_data[S_KV * D];
static int32_t indices_data[TOPK] = {0, 2, -1};
static uint16_t out_data[S_Q * H_Q * D_V];
static float max_logits_data[S_Q * H_Q];
static float lse_data[S_Q * H_Q];

static const int64_t q_shape[] = {S_Q, H_Q, D}, kv_shape[] = {S_KV, 1, D}, indices_shape[] = {S_Q, 1, TOPK};
static const int64_t out_shape[] = {S_Q, H_Q, D_V}, lse_shape[] = {S_Q, H_Q};
static sparse_mla_tensor q = {q_data, SPARSE_MLA_FLOAT8_E4M3FN, SPARSE_MLA_CPU, 0, 3, q_shape, NULL};
static sparse_mla_tensor kv = {kv_data, SPARSE_MLA_FLOAT8_E4M3FN, SPARSE_MLA_CPU, 0, 3, kv_shape, NULL};
static sparse_mla_tensor indices = {indices_data, SPARSE_MLA_INT32, SPARSE_MLA_CPU, 0, 3, indices_shape, NULL};
static sparse_mla_tensor out = {out_data, SPARSE_MLA_BFLOAT16, SPARSE_MLA_CPU, 0, 3, out_shape, NULL};
static sparse_mla_tensor max_logits = {max_logits_data, SPARSE_MLA_FLOAT32, SPARSE_MLA_CPU, 0, 2, lse_shape, NULL};
static sparse_mla_tensor lse = {lse_data, SPARSE_MLA_FLOAT32, SPARSE_MLA_CPU, 0, 2, lse_shape, NULL};

static sparse_mla_prefill_call prefill_call(void) {
  sparse_mla_prefill_call call = SPARSE_MLA_PREFILL_CALL_INIT;
  memset(q_data, 0x38, sizeof q_data);
  memset(kv_data, 0x38, D);
  memset(kv_data + D, 0x7f, D);
  memset(kv_data + 2 * D, 0x40, D);
  call.q = &q;
  call.kv = &kv;
  call.indices = &indices;
  call.sm_scale = 1.0 / D;
  call.d_v = D_V;
  call.out = &out;
  call.max_logits = &max_logits;
  call.lse = &lse;
  return call;
}

static void test_prefill_computes(void) {
  const sparse_mla_prefill_call call = prefill_call();
  int i;
  memset(out_data, 0xff, sizeof out_data);
  EXPECT(sparse_mla_prefill(&call, NULL) == SPARSE_MLA_OK);
  EXPECT_TEXT(sparse_mla_last_message(), "");
  /* logits 1 and 2: out = (e * 1 + e^2 * 2) / (e + e^2) */
  for (i = 0; i < S_Q * H_Q * D_V; ++i) EXPECT(fabs(from_bfloat16(out_data[i]) - 1.7310586) < 1e-2);
  for (i = 0; i < S_Q * H_Q; ++i) {
    EXPECT(fabs(max_logits_data[i] - 2.0) < 1e-6);
    EXPECT(fabs(lse_data[i] - 2.3132617) < 1e-5);
  }
}

static void test_decode_computes(void) {
  uint16_t q_rows[D], pool_rows[2 * D], result[D];
  float lse_row[1];
  int32_t slots[] = {1, 1, 0}, indptr[] = {0, 3};
  const int64_t rows[] = {1, 1, D}, pool[] = {2, D}, three[] = {3}, two[] = {2}, heads[] = {1, 1};
  const sparse_mla_tensor q_tensor = {q_rows, SPARSE_MLA_BFLOAT16, SPARSE_MLA_CPU, 0, 3, rows, NULL};
  const sparse_mla_tensor kv_tensor = {pool_rows, SPARSE_MLA_BFLOAT16, SPARSE_MLA_CPU, 0, 2, pool, NULL};
  const sparse_mla_tensor slots_tensor = {slots, SPARSE_MLA_INT32, SPARSE_MLA_CPU, 0, 1, three, NULL};
  const sparse_mla_tensor indptr_tensor = {indptr, SPARSE_MLA_INT32, SPARSE_MLA_CPU, 0, 1, two, NULL};
  const sparse_mla_tensor out_tensor = {result, SPARSE_MLA_BFLOAT16, SPARSE_MLA_CPU, 0, 3, rows, NULL};
  const sparse_mla_tensor lse_tensor = {lse_row, SPARSE_MLA_FLOAT32, SPARSE_MLA_CPU, 0, 2, heads, NULL};
  sparse_mla_options options = SPARSE_MLA_OPTIONS_INIT;
  sparse_mla_decode_call call = SPARSE_MLA_DECODE_CALL_INIT;
  size_t bytes = 7;
  int i;
  for (i = 0; i < D; ++i) {
    q_rows[i] = 0;
    pool_rows[i] = 0x40c0;     /* 6 */
    pool_rows[D + i] = 0x4040; /* 3 */
  }
  call.q = &q_tensor;
  call.pool.unified_kv = &kv_tensor;
  call.pool.kv_indices = &slots_tensor;
  call.pool.kv_indptr = &indptr_tensor;
  call.out = &out_tensor;
  call.lse = &lse_tensor;
  options.threads = 1;
  EXPECT(sparse_mla_decode(&call, &options) == SPARSE_MLA_OK);
  for (i = 0; i < D; ++i) EXPECT(from_bfloat16(result[i]) == 4.0f); /* duplicates count each time */
  EXPECT(fabs(lse_row[0] - log(3.0)) < 1e-6);
  EXPECT(sparse_mla_decode_workspace_bytes(&call, &options, &bytes) == SPARSE_MLA_OK && bytes == 0);

  EXPECT(sparse_mla_sparse_attn_v4_paged_decode(&call, &options) == SPARSE_MLA_REFUSED_CALL);
  EXPECT_TEXT(sparse_mla_last_message(), "sparse_attn_v4_paged_decode requires CUDA tensors");
  indptr[1] = 4;
  EXPECT(sparse_mla_decode(&call, NULL) == SPARSE_MLA_REFUSED_CALL);
}

static void test_broken_rules_have_their_text(void) {
  sparse_mla_prefill_call call = prefill_call();
  sparse_mla_violation violation;
  EXPECT(sparse_mla_q8kv8_prefill_fwd(&call, NULL) == SPARSE_MLA_INVALID_CALL);
  EXPECT_TEXT(sparse_mla_last_message(), "q must be a CUDA tensor");
  EXPECT(sparse_mla_get_violation(0, &violation));
  EXPECT_TEXT(violation.slug, "prefill-q-cuda");
  EXPECT_TEXT(violation.message, "q must be a CUDA tensor");
  EXPECT_TEXT(violation.argument, "q");
  EXPECT_TEXT(violation.got, "cpu");
  EXPECT(strlen(violation.fix) > 0);
  EXPECT(!sparse_mla_get_violation(1, &violation));
  EXPECT(!sparse_mla_get_violation(0, NULL));
}

static void test_check_finds_all(void) {
  sparse_mla_prefill_call call = prefill_call();
  sparse_mla_violation first, last;
  size_t count = 0, i;
  sparse_mla_tensor wrong = q;
  wrong.dtype = SPARSE_MLA_BFLOAT16;
  wrong.device = SPARSE_MLA_CUDA;
  wrong.device_index = 1;
  call.q = &wrong;
  EXPECT(sparse_mla_check_prefill(&call, 1, 0, &count) == SPARSE_MLA_OK);
  EXPECT(count > 3);
  EXPECT(sparse_mla_get_violation(0, &first));
  EXPECT_TEXT(first.message, "kv must be a CUDA tensor");
  for (i = 0; i < count; ++i) EXPECT(sparse_mla_get_violation(i, &last) && strlen(last.message) > 0);
  EXPECT(!sparse_mla_get_violation(count, &last));
  call.q = &q;
  EXPECT(sparse_mla_check_prefill(&call, 0, 1, &count) == SPARSE_MLA_OK && count == 0);
}

static void test_what_cannot_be_read(void) {
  sparse_mla_prefill_call call = prefill_call();
  sparse_mla_tensor wrong = kv;
  sparse_mla_decode_call decode = SPARSE_MLA_DECODE_CALL_INIT;
  EXPECT(sparse_mla_prefill(NULL, NULL) == SPARSE_MLA_INVALID_ARGUMENT);
  EXPECT_TEXT(sparse_mla_last_message(), "call must not be NULL");
  call.kv = NULL;
  EXPECT(sparse_mla_prefill(&call, NULL) == SPARSE_MLA_INVALID_ARGUMENT);
  EXPECT_TEXT(sparse_mla_last_message(), "kv must not be NULL");
  call.kv = &wrong;
  wrong.dtype = (sparse_mla_dtype)99;
  EXPECT(sparse_mla_prefill(&call, NULL) == SPARSE_MLA_INVALID_ARGUMENT);
  EXPECT_TEXT(sparse_mla_last_message(), "kv: unknown dtype 99");
  wrong = kv;
  wrong.rank = 9;
  EXPECT(sparse_mla_prefill(&call, NULL) == SPARSE_MLA_INVALID_ARGUMENT);
  wrong = kv;
  wrong.device = SPARSE_MLA_CUDA;
  wrong.device_index = -1;
  EXPECT(sparse_mla_prefill(&call, NULL) == SPARSE_MLA_INVALID_ARGUMENT);
  wrong = kv;
  wrong.data = NULL;
  EXPECT(sparse_mla_prefill(&call, NULL) == SPARSE_MLA_INVALID_CALL);
  call = prefill_call();
  call.struct_size = 0;
  EXPECT(sparse_mla_prefill(&call, NULL) == SPARSE_MLA_INVALID_ARGUMENT);
  call.struct_size = sizeof call + 8;
  EXPECT(sparse_mla_prefill(&call, NULL) == SPARSE_MLA_INVALID_ARGUMENT);
  EXPECT(sparse_mla_decode(&decode, NULL) == SPARSE_MLA_INVALID_ARGUMENT);
  EXPECT_TEXT(sparse_mla_last_message(), "q must not be NULL");
  EXPECT(sparse_mla_check_decode(&decode, 1, 0, NULL) == SPARSE_MLA_INVALID_ARGUMENT);
}

static void test_an_older_program_passes_a_shorter_struct(void) {
  sparse_mla_prefill_call call = prefill_call();
  call.struct_size = offsetof(sparse_mla_prefill_call, lse);
  EXPECT(sparse_mla_prefill(&call, NULL) == SPARSE_MLA_INVALID_CALL); /* lse does not exist for it, so it is not given */
  EXPECT(strstr(sparse_mla_last_message(), "lse") != NULL);
}

int main(void) {
  EXPECT(strlen(sparse_mla_version()) >= 5);
  test_prefill_computes();
  test_decode_computes();
  test_broken_rules_have_their_text();
  test_check_finds_all();
  test_what_cannot_be_read();
  test_an_older_program_passes_a_shorter_struct();
  if (failures == 0) printf("capi: all good\n");
  return failures != 0;
}
