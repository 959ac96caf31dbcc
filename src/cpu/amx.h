// bf16 tile kernels for x86 CPUs with AMX-BF16 and AVX-512 (Sapphire Rapids and later).
#pragma once

#include "cpu/row.h"

namespace sparse_mla::cpu {

// The CPU has the instructions and the operating system lets this process use the tile registers.
bool amx_available() noexcept;
// e4m3 and bf16 pools are exact in bf16; a query may be any of the three formats.
bool amx_serves(const RowCall& call) noexcept;
const RowKernels& amx_kernels();

}  // namespace sparse_mla::cpu
