#include "gpu/ceilings.h"

#include <stdexcept>

#include "cuda/device_buffer.h"
#include "gpu/cublaslt.h"
#include "gpu/data.h"
#include "gpu/timing.h"

namespace sparse_mla::bench {
namespace {

constexpr int kSize = 8192;
constexpr std::size_t kWorkspaceBytes = 64u << 20;
constexpr std::size_t kCopyBytes = std::size_t{4} << 30;
constexpr int kSamples = 10;
constexpr int kWarmups = 3;

double tflops(CublasLt& library, cudaDataType_t type) {
  const std::int64_t count = std::int64_t{kSize} * kSize;
  const std::size_t element = type == CUDA_R_8F_E4M3 ? 1 : 2;
  cuda::DeviceBuffer a(count * element);
  cuda::DeviceBuffer b(count * element);
  cuda::DeviceBuffer d(count * 2);
  cuda::DeviceBuffer workspace(kWorkspaceBytes);
  const float one = 1.0f;
  cuda::DeviceBuffer scale(&one, sizeof(one));
  if (element == 1) {
    fill_normal_e4m3(a.as<std::uint8_t>(), count, 1.0f, 1);
    fill_normal_e4m3(b.as<std::uint8_t>(), count, 1.0f, 2);
  } else {
    fill_normal_bf16(a.as<std::uint16_t>(), count, 1.0f, 1);
    fill_normal_bf16(b.as<std::uint16_t>(), count, 1.0f, 2);
  }
  const CublasLt::Product product(library, type, kSize, a.data(), b.data(), d.data(), scale.as<float>(),
                                  workspace.data(), kWorkspaceBytes);
  const Spread us =
      time_events([&](int, cudaStream_t stream) { product.enqueue(stream); }, kSamples, kWarmups);
  return 2.0 * kSize * kSize * kSize / us.median * 1e-6;
}

double copy_bandwidth() {
  cuda::DeviceBuffer from(kCopyBytes);
  cuda::DeviceBuffer to(kCopyBytes);
  fill_normal_bf16(from.as<std::uint16_t>(), kCopyBytes / 2, 1.0f, 3);
  const Spread us = time_events(
      [&](int, cudaStream_t stream) {
        cuda::throw_on_error(
            cudaMemcpyAsync(to.data(), from.data(), kCopyBytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
      },
      kSamples, kWarmups);
  return 2.0 * kCopyBytes / us.median * 1e6;
}

}  // namespace

Ceilings measure_ceilings() {
  Ceilings ceilings;
  ceilings.copy_bytes_per_s = copy_bandwidth();
  try {
    CublasLt library;
    ceilings.cublaslt = library.path();
    ceilings.e4m3_tflops = tflops(library, CUDA_R_8F_E4M3);
    ceilings.bf16_tflops = tflops(library, CUDA_R_16BF);
  } catch (const std::exception& error) {
    ceilings.cublaslt = error.what();
  }
  return ceilings;
}

}  // namespace sparse_mla::bench
