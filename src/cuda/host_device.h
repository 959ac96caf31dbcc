// Functions that host tests and kernels share.
#pragma once

#ifdef __CUDACC__
#define SPARSE_MLA_HOST_DEVICE __host__ __device__
#else
#define SPARSE_MLA_HOST_DEVICE
#endif
