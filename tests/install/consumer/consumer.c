/* The C interface from an installed copy: one refused call with its text. */
#include <sparse_mla/sparse_mla.h>

#include <stdio.h>
#include <string.h>

int main(void) {
  const int64_t shape[] = {1, 64};
  float data[64] = {0};
  const sparse_mla_tensor tensor = {data, SPARSE_MLA_FLOAT32, SPARSE_MLA_CPU, 0, 2, shape, NULL};
  sparse_mla_prefill_call call = SPARSE_MLA_PREFILL_CALL_INIT;
  call.q = call.kv = call.indices = &tensor;
  if (sparse_mla_prefill(&call, NULL) != SPARSE_MLA_INVALID_CALL) return 1;
  printf("%s %s\n", sparse_mla_version(), sparse_mla_last_message());
  return strcmp(sparse_mla_last_message(), "q must have shape (s_q, h_q, d_qk), got (1, 64)") != 0;
}
