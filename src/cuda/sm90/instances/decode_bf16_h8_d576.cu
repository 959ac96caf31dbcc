#include "cuda/sm90/decode/instance.cuh"

namespace sparse_mla::cuda::sm90::decode {
template int enqueue<KvFormat::kBF16, 8, 9, 9, slots_of(KvFormat::kBF16, 8, 9)>(const Args&, void*);
}  // namespace sparse_mla::cuda::sm90::decode
