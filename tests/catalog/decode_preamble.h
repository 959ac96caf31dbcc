// The names that C++ examples about decode use.
#pragma once

#include "catalog/example.h"

namespace sparse_mla::catalog_test {

struct DecodeExample {
  using How = bool;  // true: the entry point of the contract; false: decode(), with a second pool, d_v of 448 and lse

  contract_test::ValidDecode valid;
  DecodeCall& call = valid.call;
  void* q_data = contract_test::nowhere(0);
  void* unified_kv_data = contract_test::nowhere(1);
  void* kv_indices_data = contract_test::nowhere(2);
  std::int32_t* indptr = valid.first.indptr.data();
  float* scales = valid.first.scales.data();
  void* second_kv_data = contract_test::nowhere(4);
  void* second_indices_data = contract_test::nowhere(5);
  std::int32_t* second_indptr = valid.second.indptr.data();
  float* second_scales = valid.second.scales.data();
  float* attn_sink_data = valid.sink.data();
  void* out_data = contract_test::nowhere(7);
  void* lse_data = contract_test::nowhere(8);

  virtual ~DecodeExample() = default;
  virtual void change() = 0;
};

const std::vector<Example<DecodeExample>>& decode_examples();

}  // namespace sparse_mla::catalog_test
