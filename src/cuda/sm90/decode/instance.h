// The instances of the kernel, as launch.cu sees them.
#pragma once

#include "cuda/sm90/decode/args.h"
#include "cuda/sm90/decode/policy.h"

namespace sparse_mla::cuda::sm90::decode {

// Enqueues one launch; a cudaError_t. Defined in ../instances/, one explicit instantiation a file.
template <KvFormat kFormat, int kHeads, int kKeyGroups, int kValueGroups, int kSlots>
int enqueue(const Args& args, void* stream);

// Blocks in flight that fit beside Q and P in 227 KiB.
constexpr int slots_of(KvFormat format, int heads, int key_groups) {
  if (format == KvFormat::kE4M3)
    return heads == 64 ? (key_groups <= 8 ? 4 : 3) : (key_groups <= 8 && heads <= 16 ? 5 : 4);
  return key_groups <= 8 && heads <= 16 ? 3 : 2;
}

}  // namespace sparse_mla::cuda::sm90::decode
