// The contract's value rules on CUDA tensors.
#include <optional>

#include "cuda/cuda.h"
#include "cuda/device_buffer.h"

namespace sparse_mla::cuda {
namespace {

constexpr unsigned long long kNoOffender = ~0ull;
constexpr int kThreads = 256;
constexpr int kMaxBlocks = 1024;

struct View {
  const void* data;
  int rank;
  long long elements;
  long long shape[kMaxRank];
  long long strides[kMaxRank];
};

template <class T>
__device__ T element(const View& view, long long position) {
  long long offset = 0;
  long long rest = position;
  for (int d = view.rank - 1; d >= 0; --d) {
    offset += rest % view.shape[d] * view.strides[d];
    rest /= view.shape[d];
  }
  return static_cast<const T*>(view.data)[offset];
}

template <class T>
struct Outside {
  long long low, high;
  __device__ bool operator()(const View& view, long long position) const {
    const T value = element<T>(view, position);
    return value < low || value > high;
  }
};

struct Decrease {
  __device__ bool operator()(const View& view, long long position) const {
    return position > 0 && element<int>(view, position) < element<int>(view, position - 1);
  }
};

struct NotFinite {
  __device__ bool operator()(const View& view, long long position) const {
    return !isfinite(element<float>(view, position));
  }
};

struct NotPositive {
  __device__ bool operator()(const View& view, long long position) const {
    const float value = element<float>(view, position);
    return !(value > 0 && isfinite(value));
  }
};

template <class Test>
__global__ void find_first(View view, Test test, unsigned long long* first) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < view.elements; i += step) {
    if (test(view, i)) {
      atomicMin(first, static_cast<unsigned long long>(i));
      return;  // this thread's later elements come after this one
    }
  }
}

View view_of(const Tensor& tensor) {
  View view{tensor.data, tensor.rank, tensor.elements(), {}, {}};
  for (int d = 0; d < tensor.rank; ++d) {
    view.shape[d] = tensor.shape[d];
    view.strides[d] = tensor.strides[d];
  }
  return view;
}

template <class T>
double fetch(const Tensor& tensor, std::int64_t position) {
  std::int64_t offset = 0;
  for (int d = tensor.rank - 1; d >= 0; --d) {
    offset += position % tensor.shape[d] * tensor.strides[d];
    position /= tensor.shape[d];
  }
  T value{};
  throw_on_error(cudaMemcpy(&value, tensor.as<const T>() + offset, sizeof(T), cudaMemcpyDeviceToHost),
                 "reading a value that a rule refuses");
  return static_cast<double>(value);
}

template <class T, class Test>
std::optional<ValueSource::Offender> first_offender(const Tensor& tensor, Test test, bool with_previous = false) {
  if (tensor.data == nullptr || tensor.elements() == 0) return std::nullopt;
  const DeviceGuard guard(tensor.device.index);
  const DeviceBuffer first(&kNoOffender, sizeof(kNoOffender));
  const long long wanted = (tensor.elements() + kThreads - 1) / kThreads;
  const int blocks = static_cast<int>(wanted < kMaxBlocks ? wanted : kMaxBlocks);
  // The tensors may have been written on any stream: wait for all of them first.
  throw_on_error(cudaDeviceSynchronize(), "waiting for the tensors before their values are checked");
  find_first<<<blocks, kThreads>>>(view_of(tensor), test, first.as<unsigned long long>());
  throw_on_error(cudaGetLastError(), "launching the value pass");
  unsigned long long position = kNoOffender;
  first.copy_to_host(&position);
  if (position == kNoOffender) return std::nullopt;
  const auto at = static_cast<std::int64_t>(position);
  return ValueSource::Offender{.position = at,
                               .value = fetch<T>(tensor, at),
                               .previous = with_previous ? fetch<T>(tensor, at - 1) : 0.0};
}

class DeviceValues final : public ValueSource {
 public:
  std::optional<Offender> first_outside(std::string_view, const Tensor& tensor, std::int64_t low,
                                        std::int64_t high) const override {
    if (tensor.dtype == DType::kInt64) return first_offender<std::int64_t>(tensor, Outside<long long>{low, high});
    return first_offender<std::int32_t>(tensor, Outside<int>{low, high});
  }
  std::optional<Offender> first_decrease(std::string_view, const Tensor& tensor) const override {
    return first_offender<std::int32_t>(tensor, Decrease{}, /*with_previous=*/true);
  }
  std::optional<Offender> first_not_finite(std::string_view, const Tensor& tensor) const override {
    return first_offender<float>(tensor, NotFinite{});
  }
  std::optional<Offender> first_not_positive(std::string_view, const Tensor& tensor) const override {
    return first_offender<float>(tensor, NotPositive{});
  }
};

}  // namespace

const ValueSource& device_values() noexcept {
  static const DeviceValues values;
  return values;
}

}  // namespace sparse_mla::cuda
