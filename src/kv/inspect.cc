// Which formats a raw tensor could be, by its dtype, shape and strides.
#include <algorithm>

#include "sparse_mla/kv_cache.h"

namespace sparse_mla {
namespace {

bool is_byte_storage(DType dtype) {
  return dtype == DType::kUInt8 || dtype == DType::kInt8 || dtype == DType::kFloat8E4M3FN;
}
// Values and scales share such a row, so that it is bytes to a tensor library.
bool is_mixed_row(const KvFormatInfo& info) {
  return info.scale_place == KvScalePlace::kRow || info.scale_place == KvScalePlace::kPageEnd;
}

void judge_dtype(const KvFormatInfo& info, const Tensor& tensor, std::vector<std::string>& objections) {
  const std::string got(torch_name(tensor.dtype));
  if (info.is_quantised() && tensor.dtype == DType::kFloat8E4M3FNUZ) {
    objections.push_back("torch.float8_e4m3fnuz codes mean half of what the same float8_e4m3fn codes mean (exponent bias "
                         "8, not 7), and 0x80 is NaN: a factor-of-two scale; kv_to_e4m3fn(from, to, 0.5) converts it");
  } else if (info.is_quantised() && (tensor.dtype == DType::kFloat8E5M2 || tensor.dtype == DType::kFloat8E5M2FNUZ)) {
    objections.push_back(got + " has 5 exponent and 2 mantissa bits where float8_e4m3fn has 4 and 3: the same codes are "
                               "other numbers; kv_to_e4m3fn converts it");
  } else if (is_mixed_row(info) ? !is_byte_storage(tensor.dtype) : tensor.dtype != info.values) {
    const std::string wanted = is_mixed_row(info) ? "bytes (torch.uint8, torch.int8 or torch.float8_e4m3fn)"
                                                  : std::string(torch_name(info.values));
    objections.push_back("the dtype is " + got + ", rows are " + wanted);
  }
}

void judge_paged_shape(const KvFormatInfo& info, const Tensor& tensor, std::vector<std::string>& objections) {
  if (tensor.rank != 2) {
    objections.push_back("the shape is " + shape_string(tensor) + ", pages are (pages, page bytes)");
  } else if (v4_page_size(tensor.shape[1]) == 0) {
    const std::int64_t rows = std::max<std::int64_t>(tensor.shape[1] / kv_row_bytes(info, info.width), 1);
    objections.push_back("no page takes " + std::to_string(tensor.shape[1]) + " bytes: " + std::to_string(rows) +
                         " rows take " + std::to_string(kv_page_bytes(info, info.width, rows)) + ", " +
                         std::to_string(rows + 1) + " take " +
                         std::to_string(kv_page_bytes(info, info.width, rows + 1)));
  }
}

void judge_row_shape(const KvFormatInfo& info, const Tensor& tensor, std::vector<std::string>& objections) {
  if (tensor.rank != 2 && tensor.rank != 3) {
    objections.push_back("the shape is " + shape_string(tensor) +
                         ", rows are (rows, values) or (pages, page_size, values)");
    return;
  }
  const std::int64_t got = tensor.shape[tensor.rank - 1];
  if (info.width == 0) {
    if (got <= 0 || got % kKvWidthMultiple != 0 || got > kMaxKvWidth) {
      objections.push_back("a row has " + std::to_string(got) + " values, not a multiple of 64 from 64 to " +
                           std::to_string(kMaxKvWidth));
    }
    return;
  }
  const std::int64_t wanted = kv_row_bytes(info, info.width);
  if (got != wanted) {
    objections.push_back("a row is " + std::to_string(got) + " bytes, not " + std::to_string(wanted));
  }
}

void judge_strides(const Tensor& tensor, std::vector<std::string>& objections) {
  if (tensor.rank == 0 || tensor.elements() == 0) return;
  const int last = tensor.rank - 1;
  if (tensor.shape[last] > 1 && tensor.strides[last] != 1) {
    objections.push_back("the values of a row are " + std::to_string(tensor.strides[last]) + " elements apart, not 1");
  }
  const auto element = static_cast<std::int64_t>(bytes_per_element(tensor.dtype));
  for (int d = 0; d < last; ++d) {
    const std::int64_t step = tensor.strides[d] * element;
    if (tensor.shape[d] > 1 && step % 16 != 0) {
      objections.push_back("dimension " + std::to_string(d) + " steps by " + std::to_string(step) +
                           " bytes, not a multiple of 16, which CUDA needs");
    }
  }
}

}  // namespace

std::vector<KvVerdict> inspect(const Tensor& tensor) {
  std::vector<KvVerdict> verdicts;
  for (const KvFormatInfo& info : kKvFormats) {
    KvVerdict verdict{info.format, {}};
    judge_dtype(info, tensor, verdict.objections);
    if (info.is_paged()) {
      judge_paged_shape(info, tensor, verdict.objections);
    } else {
      judge_row_shape(info, tensor, verdict.objections);
    }
    judge_strides(tensor, verdict.objections);
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

}  // namespace sparse_mla
