/* The C interface: the entry points for engines that are not written in C++.
 *
 * Plain C99. Nothing is thrown, printed or exited with; a function that can fail returns a sparse_mla_status, and the
 * text behind it is kept per thread until that thread's next call. Tensors are views of memory that the caller owns.
 *
 *   sparse_mla_tensor q = {data, SPARSE_MLA_FLOAT8_E4M3FN, SPARSE_MLA_CUDA, 0, 3, shape, NULL};
 *   sparse_mla_prefill_call call = SPARSE_MLA_PREFILL_CALL_INIT;
 *   call.q = &q; ...
 *   if (sparse_mla_q8kv8_prefill_fwd(&call, &options) != SPARSE_MLA_OK) puts(sparse_mla_last_message());
 *
 * Shapes, dtypes and messages: docs/contract.md; formulas: docs/math.md.
 */
#ifndef SPARSE_MLA_SPARSE_MLA_H
#define SPARSE_MLA_SPARSE_MLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sparse_mla_status {
  SPARSE_MLA_OK = 0,
  SPARSE_MLA_INVALID_CALL = 1,     /* a rule of prefill is broken: Python's ValueError */
  SPARSE_MLA_REFUSED_CALL = 2,     /* a rule of decode is broken: Python's RuntimeError */
  SPARSE_MLA_INVALID_ARGUMENT = 3, /* the call cannot be read: a null pointer, an unknown dtype, a small workspace */
  SPARSE_MLA_RUNTIME_ERROR = 4,    /* the device cannot run it, or CUDA reports an error */
  SPARSE_MLA_OUT_OF_MEMORY = 5
} sparse_mla_status;

typedef enum sparse_mla_dtype {
  SPARSE_MLA_FLOAT8_E4M3FN = 0,
  SPARSE_MLA_FLOAT8_E4M3FNUZ = 1,
  SPARSE_MLA_FLOAT8_E5M2 = 2,
  SPARSE_MLA_FLOAT8_E5M2FNUZ = 3,
  SPARSE_MLA_FLOAT8_E8M0FNU = 4,
  SPARSE_MLA_BFLOAT16 = 5,
  SPARSE_MLA_FLOAT16 = 6,
  SPARSE_MLA_FLOAT32 = 7,
  SPARSE_MLA_FLOAT64 = 8,
  SPARSE_MLA_UINT8 = 9,
  SPARSE_MLA_INT8 = 10,
  SPARSE_MLA_INT16 = 11,
  SPARSE_MLA_INT32 = 12,
  SPARSE_MLA_INT64 = 13,
  SPARSE_MLA_BOOL = 14
} sparse_mla_dtype;

typedef enum sparse_mla_device { SPARSE_MLA_CPU = 0, SPARSE_MLA_CUDA = 1 } sparse_mla_device;

typedef struct sparse_mla_tensor {
  void* data;
  int32_t dtype;  /* a sparse_mla_dtype; any other value is refused */
  int32_t device; /* a sparse_mla_device; any other value is refused */
  int32_t device_index; /* 0 for the CPU */
  int32_t rank;
  const int64_t* shape;   /* `rank` sizes */
  const int64_t* strides; /* `rank` strides, counted in elements; NULL is row-major without gaps */
} sparse_mla_tensor;

/* Arguments of prefill. NULL is "not given"; q, kv and indices must be given. Set struct_size with the INIT macro: it
 * tells the library which fields exist. */
typedef struct sparse_mla_prefill_call {
  size_t struct_size;
  const sparse_mla_tensor* q;           /* [s_q, h_q, d_qk]   float8_e4m3fn */
  const sparse_mla_tensor* kv;          /* [s_kv, 1, d_qk]    float8_e4m3fn */
  const sparse_mla_tensor* indices;     /* [s_q, 1, topk]     int32; outside [0, s_kv) is "no token" */
  double sm_scale;                      /* multiplies the logits */
  const sparse_mla_tensor* q_scale;     /* one float32 value */
  const sparse_mla_tensor* kv_scale;    /* one float32 value */
  int64_t d_v;                          /* value width, 512 in the contract */
  const sparse_mla_tensor* attn_sink;   /* [h_q] float32 */
  const sparse_mla_tensor* topk_length; /* [s_q] int32 */
  const sparse_mla_tensor* out;         /* [s_q, h_q, d_v] bfloat16, written */
  const sparse_mla_tensor* max_logits;  /* [s_q, h_q] float32, written */
  const sparse_mla_tensor* lse;         /* [s_q, h_q] float32, written; natural log, sink not included */
} sparse_mla_prefill_call;
#define SPARSE_MLA_PREFILL_CALL_INIT {sizeof(sparse_mla_prefill_call), 0, 0, 0, 1.0, 0, 0, 512, 0, 0, 0, 0, 0}

typedef struct sparse_mla_pool {
  const sparse_mla_tensor* unified_kv; /* [total_pages, D]  q's dtype, or float8_e4m3fn with kv_scales */
  const sparse_mla_tensor* kv_indices; /* [total_indices]   int32 */
  const sparse_mla_tensor* kv_indptr;  /* [N + 1]           int32 */
  const sparse_mla_tensor* kv_scales;  /* [total_pages, D / 64] float32, on CUDA without gaps in a row; or NULL */
} sparse_mla_pool;

/* Arguments of decode. NULL is "not given"; q and the pool's first three must be given. */
typedef struct sparse_mla_decode_call {
  size_t struct_size;
  const sparse_mla_tensor* q; /* [N, H, D] bfloat16 or float16 */
  sparse_mla_pool pool;
  const sparse_mla_tensor* attn_sink; /* [H] float32 */
  double softmax_scale;               /* multiplies the logits */
  const sparse_mla_tensor* out;       /* [N, H, d_v] in q's dtype, written */
  const sparse_mla_pool* second_pool; /* general API: attended under the same softmax */
  int64_t d_v;                        /* general API: value width; 0 is all D */
  const sparse_mla_tensor* lse;       /* general API: [N, H] float32, written */
} sparse_mla_decode_call;
#define SPARSE_MLA_DECODE_CALL_INIT {sizeof(sparse_mla_decode_call), 0, {0, 0, 0, 0}, 0, 1.0, 0, 0, 0, 0}

typedef struct sparse_mla_options {
  size_t struct_size;
  int batch_invariant; /* a row's result does not depend on which other rows are in the call */
  int check_values;    /* look at lengths, indptr and scales too; always done for CPU tensors; waits for a device */
  int threads;         /* CPU backend; 0 is one per core */
  void* stream;        /* CUDA backend: a cudaStream_t */
  void* workspace;     /* CUDA backend: device memory of at least *_workspace_bytes, 256-byte aligned */
  size_t workspace_bytes;
} sparse_mla_options;
#define SPARSE_MLA_OPTIONS_INIT {sizeof(sparse_mla_options), 0, 0, 0, 0, 0, 0}

/* "0.1.0" */
const char* sparse_mla_version(void);

/* The contract's entry points: CUDA tensors, contract parts A and B. `options` may be NULL. */
sparse_mla_status sparse_mla_q8kv8_prefill_fwd(const sparse_mla_prefill_call* call, const sparse_mla_options* options);
sparse_mla_status sparse_mla_sparse_attn_v4_paged_decode(const sparse_mla_decode_call* call,
                                                         const sparse_mla_options* options);
/* The same math with fewer conditions (contract part D), for CPU and CUDA tensors. */
sparse_mla_status sparse_mla_prefill(const sparse_mla_prefill_call* call, const sparse_mla_options* options);
sparse_mla_status sparse_mla_decode(const sparse_mla_decode_call* call, const sparse_mla_options* options);

/* Device memory that a call of these shapes needs; 0 on the CPU. Depends on shapes and options only. */
sparse_mla_status sparse_mla_prefill_workspace_bytes(const sparse_mla_prefill_call* call,
                                                     const sparse_mla_options* options, size_t* bytes);
sparse_mla_status sparse_mla_decode_workspace_bytes(const sparse_mla_decode_call* call,
                                                    const sparse_mla_options* options, size_t* bytes);

/* Looks at a call without running it. SPARSE_MLA_OK says that the call could be read; how many rules it breaks is
 * *count, and sparse_mla_get_violation has them, in the contract's order. `contract` selects parts A and B. */
sparse_mla_status sparse_mla_check_prefill(const sparse_mla_prefill_call* call, int contract, int check_values,
                                           size_t* count);
sparse_mla_status sparse_mla_check_decode(const sparse_mla_decode_call* call, int contract, int check_values,
                                          size_t* count);

/* One broken rule. The strings live until this thread's next call of a function that returns a status. */
typedef struct sparse_mla_violation {
  const char* slug;     /* stable, as `sparse-mla explain SLUG` takes it */
  const char* message;  /* to the letter of the contract */
  const char* argument; /* the argument at fault */
  const char* expected;
  const char* got;
  const char* fix; /* the shortest fix, with this call's values in it */
} sparse_mla_violation;

/* The text of this thread's last failure; "" after a success. Never NULL. */
const char* sparse_mla_last_message(void);
/* The violations that this thread's last call found: those of a check, or the one behind an INVALID_CALL or
 * REFUSED_CALL. Returns 0 where there is no violation of that index. */
int sparse_mla_get_violation(size_t index, sparse_mla_violation* violation);

#ifdef __cplusplus
}
#endif

#endif
