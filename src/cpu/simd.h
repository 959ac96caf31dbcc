// The portable kernels: float32, the widest vectors that the CPU has, chosen at run time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cpu/row.h"

namespace sparse_mla::cpu {

const RowKernels& float32_kernels();

// One softmax step over block.count tokens: S in w.logits becomes P = exp(scale * S - max), padded with zero rows to a
// multiple of 32; w.max, w.sum and w.out_t move to the new maximum.
void soften(Workspace& w, const Block& block, float scale);

// out, max_logits and lse of a row that had at least one token.
void finish_row(const Workspace& w, const RowCall& call);

// Names of the instruction sets that this binary and this CPU have, best first: "AVX3_DL", "AVX2", ...
std::vector<std::string> vector_targets();
std::string vector_target();
// Forces one of vector_targets(), for tests; "" is the best. Throws std::invalid_argument. Not while a call runs.
void force_vector_target(std::string_view name);

}  // namespace sparse_mla::cpu
