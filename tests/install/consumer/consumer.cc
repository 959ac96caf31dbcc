// Every installed C++ header, one computed row, one refused call.
#include <sparse_mla/attention.h>
#include <sparse_mla/contract.h>

#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  std::vector<std::uint16_t> q(64, 0), pool(2 * 64, 0x4000), out(64, 0xffff);  // bfloat16 zeros and twos
  std::vector<std::int32_t> slots{0, 1}, indptr{0, 2};
  using sparse_mla::DType;
  sparse_mla::DecodeCall call;
  call.q = {q.data(), DType::kBFloat16, {1, 1, 64}};
  call.pool.unified_kv = {pool.data(), DType::kBFloat16, {2, 64}};
  call.pool.kv_indices = {slots.data(), DType::kInt32, {2}};
  call.pool.kv_indptr = {indptr.data(), DType::kInt32, {2}};
  call.out = sparse_mla::Tensor(out.data(), DType::kBFloat16, {1, 1, 64});
  sparse_mla::decode(call);
  for (std::uint16_t value : out) {
    if (value != 0x4000) return std::printf("wrong value %x\n", value), 1;
  }
  try {
    sparse_mla::sparse_attn_v4_paged_decode(call);
  } catch (const sparse_mla::RefusedCall& refused) {
    return refused.violation().slug == "decode-q-cuda" ? 0 : 1;
  }
  return 1;
}
