// The names that C++ examples about prefill use.
#pragma once

#include "catalog/example.h"

namespace sparse_mla::catalog_test {

struct PrefillExample {
  using How = bool;  // true: the entry point of the contract; false: prefill()

  contract_test::ValidPrefill valid;
  PrefillCall& call = valid.call;
  void* q_data = contract_test::nowhere(0);
  void* kv_data = contract_test::nowhere(1);
  void* indices_data = contract_test::nowhere(2);
  void* out_data = contract_test::nowhere(3);
  void* max_logits_data = contract_test::nowhere(4);
  void* lse_data = contract_test::nowhere(5);
  float* q_scale_data = valid.q_scale_value;
  float* kv_scale_data = valid.kv_scale_value;
  float* attn_sink_data = valid.sink.data();
  std::int32_t* lengths = valid.lengths.data();

  virtual ~PrefillExample() = default;
  virtual void change() = 0;
};

const std::vector<Example<PrefillExample>>& prefill_examples();

}  // namespace sparse_mla::catalog_test
