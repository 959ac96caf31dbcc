// The names that C++ examples about transfers of cache rows use.
#pragma once

#include "catalog/example.h"

namespace sparse_mla::catalog_test {

struct KvExample {
  using How = std::string_view;  // "append": plain rows into a cache, with given scales; else a gather

  contract_test::ValidKv valid;
  KvCall& call = valid.call;
  void* source_data = contract_test::nowhere(0);
  void* source_scale_data = contract_test::nowhere(1);
  void* target_data = contract_test::nowhere(2);
  void* target_scale_data = contract_test::nowhere(3);
  void* remapped_data = contract_test::nowhere(4);
  void* long_list = contract_test::nowhere(10);
  std::int32_t* slots = valid.slots.data();
  std::int64_t* targets = valid.targets.data();
  float* given = valid.given.data();

  virtual ~KvExample() = default;
  virtual void change() = 0;
};

const std::vector<Example<KvExample>>& kv_examples();

}  // namespace sparse_mla::catalog_test
