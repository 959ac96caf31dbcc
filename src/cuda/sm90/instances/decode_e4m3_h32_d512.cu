#include "cuda/sm90/decode/instance.cuh"

namespace sparse_mla::cuda::sm90::decode {
template int enqueue<KvFormat::kE4M3, 32, 8, 8, slots_of(KvFormat::kE4M3, 32, 8)>(const Args&, void*);
}  // namespace sparse_mla::cuda::sm90::decode
