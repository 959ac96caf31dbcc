// The KV cache's operations and the cache that owns its memory.
#include "sparse_mla/kv_cache.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "base/kv_layout.h"
#include "cuda/cuda.h"
#include "cuda/kv_cache.h"
#include "dispatch/kv_problem.h"
#include "dispatch/options.h"
#include "kv/fp8_variants.h"
#include "kv/transfer.h"
#include "sparse_mla/contract.h"

namespace sparse_mla {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t rounded_up(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::shared_ptr<void> allocate(Device device, std::size_t bytes) {
  if (device.is_cuda()) return cuda::allocate(device.index, bytes);
  void* data = std::aligned_alloc(kAlignment, rounded_up(std::max<std::size_t>(bytes, 1)));
  if (data == nullptr) throw std::bad_alloc();
  std::memset(data, 0, bytes);
  return {data, std::free};
}

std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw std::invalid_argument("a KV cache of 2**63 bytes or more");
  return product;
}

std::int64_t checked_width(const KvCacheShape& shape) {
  const KvFormatInfo& info = kv_format_info(shape.format);
  if (info.width != 0) return info.width;
  if (shape.width > 0 && shape.width % kKvWidthMultiple == 0 && shape.width <= kMaxKvWidth) return shape.width;
  throw std::invalid_argument("the width of a " + std::string(info.name) + " cache must be a multiple of 64 from 64 to " +
                              std::to_string(kMaxKvWidth) + ", got " + std::to_string(shape.width));
}

void check_shape(const KvCacheShape& shape, Device device) {
  constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 2;
  if (shape.rows < 0 || shape.rows > kMaxRows) {
    throw std::invalid_argument("a KV cache has from 0 to 2**31 - 2 rows, got " + std::to_string(shape.rows));
  }
  if (kv_format_info(shape.format).is_paged() && (shape.page_size < 1 || shape.page_size > kMaxRows)) {
    throw std::invalid_argument("page_size must be at least 1, got " + std::to_string(shape.page_size));
  }
  if (!device.is_cpu() && !device.is_cuda()) {
    throw std::invalid_argument("a KV cache lives on cpu or cuda, got " + to_string(device));
  }
}

DType storage_of(const KvFormatInfo& info) {
  return info.is_quantised() && !info.has_scale_tensor() ? DType::kUInt8 : info.values;
}

std::string way_out(const KvFormatInfo& info, int width, std::string_view asked) {
  const std::string target = asked == "prefill" ? (width == 576 ? "q8kv8_576" : "q8kv8_512") : "a unified_* format";
  return std::string(asked) + " does not read " + std::string(info.name) + " rows; convert or gather them into " +
         target + " first";
}

KvFormat format_of(const KvRows& cache, std::string_view asked) {
  if (!cache.format) throw std::invalid_argument(std::string(asked) + " reads a cache, got plain rows");
  return *cache.format;
}

void check_fp8_pair(const Tensor& from, const Tensor& to, float scale) {
  if (!kv::is_float8(from.dtype)) {
    throw std::invalid_argument("from must be a float8 with a sign, got " + std::string(torch_name(from.dtype)));
  }
  if (to.dtype != DType::kFloat8E4M3FN) {
    throw std::invalid_argument("to must be torch.float8_e4m3fn, got " + std::string(torch_name(to.dtype)));
  }
  if (!std::ranges::equal(from.sizes(), to.sizes())) {
    throw std::invalid_argument("to must have shape " + shape_string(from) + ", got " + shape_string(to));
  }
  if (!(from.device == to.device)) {
    throw std::invalid_argument("to must be on device " + to_string(from.device) + ", got " + to_string(to.device));
  }
  if (!from.is_contiguous() || !to.is_contiguous()) throw std::invalid_argument("from and to must be contiguous");
  if (!(scale > 0 && scale <= 3.402823466e38f)) throw std::invalid_argument("scale must be finite and above 0");
}

}  // namespace

// ---- transfers ----------------------------------------------------------------------------------------------------

void kv_transfer(const KvCall& call, const RunOptions& options) {
  const bool on_cpu = call.source.data.device.is_cpu();
  enforce(call, dispatch::check_options(on_cpu, /*contract=*/false, options));
  const KvTransferProblem problem = dispatch::kv_transfer_problem(call);
  if (on_cpu) return kv::transfer(problem, options.threads);
  cuda::kv_transfer(problem, dispatch::cuda_launch(call.source.data.device, options));
}

std::size_t kv_workspace_bytes(const KvCall& call) {
  if (!call.source.data.device.is_cuda()) return 0;
  enforce(call, {.contract = false});
  return cuda::kv_transfer_workspace_bytes(dispatch::kv_transfer_problem(call));
}

KvCall kv_append_call(const Tensor& rows, const Argument& slots, const KvRows& cache, const KvScales& scales) {
  KvCall call;
  call.source.data = rows;
  call.target = cache;
  call.target_slots = slots;
  call.scaling = scales.scaling;
  call.scales = scales.given;
  return call;
}

KvCall kv_dequantise_call(const KvRows& cache, const Argument& slots, const Tensor& out) {
  KvCall call;
  call.source = cache;
  call.source_slots = slots;
  call.target.data = out;
  return call;
}

KvCall kv_convert_call(const KvRows& source, const KvRows& target, const KvScales& scales) {
  KvCall call;
  call.source = source;
  call.target = target;
  call.scaling = scales.scaling;
  call.scales = scales.given;
  return call;
}

KvCall kv_gather_call(const KvRows& pool, const Tensor& indices, const KvRows& workspace, const Argument& remapped,
                      std::int64_t first_row) {
  KvCall call;
  call.source = pool;
  call.source_slots = indices;
  call.target = workspace;
  call.remapped = remapped;
  call.first_row = first_row;
  return call;
}

// ---- into the entry points ------------------------------------------------------------------------------------------

void set_prefill_kv(PrefillCall& call, const KvRows& cache) {
  const KvFormatInfo& info = kv_format_info(format_of(cache, "prefill"));
  if (!info.prefill) throw std::invalid_argument(way_out(info, static_cast<int>(kv_width(cache).value_or(512)), "prefill"));
  const Tensor& data = cache.data;
  if (data.rank == 3) {
    if (data.shape[1] != 1) {
      throw std::invalid_argument("prefill reads (s_kv, 1, d_qk), got pages of " + std::to_string(data.shape[1]));
    }
    call.kv = data;
  } else {
    const std::array<std::int64_t, 3> shape{data.shape[0], 1, data.shape[1]};
    const std::array<std::int64_t, 3> strides{data.strides[0], data.shape[1], data.strides[1]};
    call.kv = Tensor(data.data, data.dtype, shape, strides, data.device);
  }
  call.kv_scale = cache.scales;
}

void set_decode_kv(PagedPool& pool, const KvRows& cache) {
  const KvFormatInfo& info = kv_format_info(format_of(cache, "decode"));
  if (!info.decode) throw std::invalid_argument(way_out(info, static_cast<int>(kv_width(cache).value_or(512)), "decode"));
  if (cache.data.rank != 2) throw std::invalid_argument("decode reads (total_pages, D), got " + shape_string(cache.data));
  pool.unified_kv = cache.data;
  pool.kv_scales = cache.scales;
}

// ---- other 8-bit floats ---------------------------------------------------------------------------------------------

void kv_to_e4m3fn(const Tensor& from, const Tensor& to, float scale, const RunOptions& options) {
  check_fp8_pair(from, to, scale);
  const kv::CodeTable table = kv::e4m3fn_codes(from.dtype, scale);
  const auto* codes = from.as<const std::uint8_t>();
  auto* target = to.as<std::uint8_t>();
  if (from.device.is_cuda()) {
    cuda::translate_codes(table, codes, target, from.elements(), dispatch::cuda_launch(from.device, options));
  } else if (from.device.is_cpu()) {
    kv::translate(table, codes, target, from.elements(), options.threads);
  } else {
    throw std::invalid_argument("from must be a CPU or CUDA tensor, got " + to_string(from.device));
  }
}

// ---- KvCache --------------------------------------------------------------------------------------------------------

KvCache::KvCache(const KvCacheShape& shape, Device device) {
  check_shape(shape, device);
  const KvFormatInfo& info = kv_format_info(shape.format);
  width_ = checked_width(shape);
  row_count_ = shape.rows;
  rows_.format = shape.format;
  std::array<std::int64_t, 2> sizes{shape.rows, info.is_quantised() ? kv_row_bytes(info, width_) : width_};
  if (info.is_paged()) {
    const std::int64_t pages = (shape.rows + shape.page_size - 1) / shape.page_size;
    row_count_ = times(pages, shape.page_size);
    rows_.page_size = shape.page_size;
    sizes = {pages, kv_page_bytes(info, width_, shape.page_size)};
  }
  const DType dtype = storage_of(info);
  const std::int64_t data_bytes = times(times(sizes[0], sizes[1]), static_cast<std::int64_t>(bytes_per_element(dtype)));
  const std::int64_t scale_count = info.scale_place == KvScalePlace::kCache    ? 1
                                   : info.scale_place == KvScalePlace::kTensor ? row_count_ * kv_row_scales(info, width_)
                                                                               : 0;
  const std::size_t scales_at = rounded_up(static_cast<std::size_t>(data_bytes));
  bytes_ = static_cast<std::size_t>(data_bytes) + static_cast<std::size_t>(scale_count) * sizeof(float);
  memory_ = allocate(device, scales_at + static_cast<std::size_t>(scale_count) * sizeof(float));
  auto* bytes = static_cast<std::byte*>(memory_.get());
  rows_.data = Tensor(bytes, dtype, sizes, device);
  if (info.scale_place == KvScalePlace::kCache) {
    rows_.scales = Tensor(bytes + scales_at, DType::kFloat32, {1}, device);
    const float one = 1.0f;
    if (device.is_cuda()) {
      cuda::copy_to_device(device.index, bytes + scales_at, &one, sizeof(one));
    } else {
      std::memcpy(bytes + scales_at, &one, sizeof(one));
    }
  } else if (info.scale_place == KvScalePlace::kTensor) {
    rows_.scales = Tensor(bytes + scales_at, DType::kFloat32, {row_count_, kv_row_scales(info, width_)}, device);
  }
  if (device.is_cuda()) {
    workspace_bytes_ = static_cast<std::size_t>(row_count_) * sizeof(std::int32_t);
    workspace_ = allocate(device, workspace_bytes_);
  }
}

KvRows KvCache::view(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0 || first > row_count_ || count > row_count_ - first) {
    throw std::out_of_range("rows " + std::to_string(first) + " to " + std::to_string(first + count) + " of a cache of " +
                            std::to_string(row_count_) + " rows");
  }
  KvRows part = rows_;
  const std::int64_t per_page = info().is_paged() ? rows_.page_size : 1;
  if (first % per_page != 0 || count % per_page != 0) {
    throw std::invalid_argument("a view of a " + std::string(info().name) + " cache begins and ends with a page of " +
                                std::to_string(per_page) + " rows, since a page's scales are at its end");
  }
  const auto element = static_cast<std::int64_t>(bytes_per_element(part.data.dtype));
  part.data.data = part.data.as<std::byte>() + first / per_page * part.data.strides[0] * element;
  part.data.shape[0] = count / per_page;
  if (info().scale_place == KvScalePlace::kTensor) {
    Tensor scales = *part.scales.tensor();
    scales.data = scales.as<float>() + first * scales.strides[0];
    scales.shape[0] = count;
    part.scales = scales;
  }
  return part;
}

void KvCache::append(const Tensor& rows, const Argument& slots, const KvScales& scales, const RunOptions& options) const {
  RunOptions with_workspace = options;
  if (options.workspace == nullptr) {
    with_workspace.workspace = workspace_.get();
    with_workspace.workspace_bytes = workspace_bytes_;
  }
  kv_transfer(kv_append_call(rows, slots, rows_, scales), with_workspace);
}

void KvCache::dequantise(const Argument& slots, const Tensor& out, const RunOptions& options) const {
  kv_transfer(kv_dequantise_call(rows_, slots, out), options);
}

}  // namespace sparse_mla
