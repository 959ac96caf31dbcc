// The KV cache: allocate, quantise and append, dequantise, convert, gather into a prefill workspace, inspect.
// Formats: kv_formats.h; byte layouts and the arithmetic, exactly: docs/kv-formats.md.
//
// Every operation is one transfer of rows (KvCall): row i of the transfer is read from slot source_slots[i], or i, of
// the source, and written to slot target_slots[i], or first_row + i, of the target. It runs on the device of its
// tensors. On CUDA it is enqueued on RunOptions::stream and allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sparse_mla/attention.h"
#include "sparse_mla/calls.h"
#include "sparse_mla/kv_formats.h"
#include "sparse_mla/tensor.h"

namespace sparse_mla {

// Rows that somebody else owns: a cache's, in its format, or plain ones. Strides are kept, so that a slice of a pool is
// passed as it is.
struct KvRows {
  // Nothing: plain rows [n, D] of bfloat16, float16 or float32, D a multiple of 64.
  std::optional<KvFormat> format;
  // q8kv8_*, unified_*: [rows, D] or [pages, page_size, D] of the format's dtype (so also prefill's [s_kv, 1, D]).
  // v32_656: [rows, 656] or [pages, page_size, 656] bytes (uint8, int8 or float8_e4m3fn).
  // v4_584: [pages, page bytes] bytes.
  Tensor data;
  // q8kv8_*: one float32; unified_fp8_1x64: [rows, D / 64] float32; None elsewhere.
  Argument scales;
  // v4_584: rows of a page; 0 reads it off the page's bytes, which must then have no gap behind the page.
  std::int64_t page_size = 0;
};

// One transfer, as the caller passed it: nothing here is checked yet.
struct KvCall {
  KvRows source;
  KvRows target;
  Argument source_slots;  // int32 or int64, contiguous, any shape; None: row i is slot i of the source
  Argument target_slots;  // the same; None: row i is slot first_row + i of the target
  std::int64_t first_row = 0;
  // Receives, for each source slot, the target row that it went to, or -1 where the slot was none: int32, the shape of
  // source_slots. Without target_slots only.
  Argument remapped;
  std::optional<KvScaling> scaling;  // nothing is default_kv_scaling(target's format)
  Argument scales;  // with kGiven, of a target whose rows have scales: [n, scales of a row] float32, finite, above 0
  // The caller promises that no slot of target_slots is named twice; saves a CUDA transfer of many rows the pass that
  // finds the last of each.
  bool unique_target_slots = false;
};

// Slots below 0 and past the end are skipped: never read, never written. -1 says so on purpose; any other such slot is
// refused where values are checked (CPU tensors, RunOptions::check_values). Of several rows for one target slot the
// last in row order is written, on every device and on every run.
// Throws InvalidCall (std::invalid_argument) on a broken rule, before anything is written; std::runtime_error where the
// device can't run it or CUDA reports an error.
void kv_transfer(const KvCall& call, const RunOptions& options = {});
// Device memory that a CUDA transfer needs: none, unless it scatters many rows to slots that may repeat. Depends on
// shapes and flags only.
std::size_t kv_workspace_bytes(const KvCall& call);

// ---- the four transfers by name -----------------------------------------------------------------------------------

struct KvScales {
  std::optional<KvScaling> scaling;  // nothing is default_kv_scaling(target's format)
  Argument given;                    // KvCall::scales
};

// Quantises rows [n, D] and writes them to the slots of a cache.
KvCall kv_append_call(const Tensor& rows, const Argument& slots, const KvRows& cache, const KvScales& scales = {});
// Rows of a cache as bfloat16, float16 or float32: out[i] = cache[slots[i]], or cache[i]. A slot that is none leaves
// its row of `out` as it is.
KvCall kv_dequantise_call(const KvRows& cache, const Argument& slots, const Tensor& out);
// Row by row into another format of the same width. Between equal formats with scales in their rows, codes and scales
// are copied bit for bit, unless a scaling is asked for.
KvCall kv_convert_call(const KvRows& source, const KvRows& target, const KvScales& scales = {});
// The step before a Q8KV8 prefill: the rows that `indices` [s_q, 1, topk] (or any shape) name, in their order, into
// rows first_row, first_row + 1, ... of a q8kv8_* workspace, and in `remapped` the indices that name them there. A -1
// stays -1 and its workspace row is not written. One kernel, with the scale that the workspace has.
KvCall kv_gather_call(const KvRows& pool, const Tensor& indices, const KvRows& workspace, const Argument& remapped,
                      std::int64_t first_row = 0);

// ---- into the entry points ----------------------------------------------------------------------------------------

// Sets kv and kv_scale of a prefill call. Throws std::invalid_argument, which names the way out, for a format that
// prefill does not read.
void set_prefill_kv(PrefillCall& call, const KvRows& cache);
// Sets unified_kv and kv_scales of a pool, likewise.
void set_decode_kv(PagedPool& pool, const KvRows& cache);

// ---- what is this? ------------------------------------------------------------------------------------------------

struct KvVerdict {
  KvFormat format;
  // What speaks against it; empty where the tensor could be of this format.
  std::vector<std::string> objections;
  bool possible() const noexcept { return objections.empty(); }
};
// One verdict a format, by dtype, shape and strides alone; values are not looked at.
std::vector<KvVerdict> inspect(const Tensor& tensor);

// ---- other 8-bit floats -------------------------------------------------------------------------------------------

// Every value of `from` (float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz or float8_e4m3fn) divided by `scale`, rounded to
// the nearest even e4m3fn, saturating, NaN kept; the cache's scales must then be multiplied by `scale`. With 0.5 an
// e4m3fnuz tensor keeps its codes, except that 240 and -240 become 448 * 0.5. Contiguous tensors of one shape on one
// device; `to` may be `from`'s memory. Throws std::invalid_argument, std::runtime_error.
void kv_to_e4m3fn(const Tensor& from, const Tensor& to, float scale = 1.0f, const RunOptions& options = {});

// ---- a cache that owns its memory ---------------------------------------------------------------------------------

struct KvCacheShape {
  KvFormat format = KvFormat::kQ8Kv8_576;
  std::int64_t rows = 0;       // v4_584: rounded up to whole pages
  std::int64_t width = 512;    // D of a unified_* format; the others have their own
  std::int64_t page_size = 64;  // v4_584; the others are not paged
};

// Data and scales are born together: all values 0, the scale of a q8kv8_* cache 1. Copies share the memory, which goes
// with the last of them and of their keep_alive().
class KvCache {
 public:
  // Throws std::invalid_argument for sizes that no cache has, std::bad_alloc or std::runtime_error where there is no
  // such memory.
  explicit KvCache(const KvCacheShape& shape, Device device = Device::cpu());

  KvFormat format() const noexcept { return *rows_.format; }
  const KvFormatInfo& info() const noexcept { return kv_format_info(format()); }
  bool is_quantised() const noexcept { return info().is_quantised(); }
  std::int64_t rows() const noexcept { return row_count_; }
  std::int64_t width() const noexcept { return width_; }
  Device device() const noexcept { return rows_.data.device; }
  std::size_t bytes() const noexcept { return bytes_; }  // data and scales

  const KvRows& view() const noexcept { return rows_; }
  // Rows [first, first + count), with the cache's strides. Throws std::out_of_range; std::invalid_argument where a
  // v4_584 slice would begin or end inside a page.
  KvRows view(std::int64_t first, std::int64_t count) const;
  // The owner of the memory, for who hands views to another language.
  const std::shared_ptr<void>& keep_alive() const noexcept { return memory_; }

  // kv_transfer of the calls above; on CUDA with the workspace that was born with the cache, so two appends at a time
  // need two streams' order.
  void append(const Tensor& rows, const Argument& slots, const KvScales& scales = {},
              const RunOptions& options = {}) const;
  void dequantise(const Argument& slots, const Tensor& out, const RunOptions& options = {}) const;

 private:
  KvRows rows_;
  std::int64_t row_count_ = 0;
  std::int64_t width_ = 0;
  std::size_t bytes_ = 0;
  std::size_t workspace_bytes_ = 0;
  std::shared_ptr<void> memory_;
  std::shared_ptr<void> workspace_;
};

}  // namespace sparse_mla
