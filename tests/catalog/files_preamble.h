// The names that C++ examples about files use: the file is written from them after the change, and read.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "catalog/example.h"
#include "files/temporary_folder.h"

namespace sparse_mla::catalog_test {

inline std::string little_endian(std::uint64_t number) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xFF);
  return bytes;
}
inline std::string with_length(const std::string& header) { return little_endian(header.size()) + header; }

struct FilesExample {
  using How = std::string_view;  // what is done with the file: "call", "result", "description", "write"

  testing::TemporaryFolder folder;
  std::string path = folder.path("call.safetensors");
  nlohmann::json header = nlohmann::json::parse(R"({
    "__metadata__": {"entry_point": "sparse_mla_q8kv8_prefill_fwd", "sm_scale": "0.25"},
    "q": {"dtype": "F8_E4M3", "shape": [1, 1, 16], "data_offsets": [0, 16]},
    "kv": {"dtype": "F8_E4M3", "shape": [2, 1, 16], "data_offsets": [16, 48]},
    "indices": {"dtype": "I32", "shape": [1, 1, 2], "data_offsets": [48, 56]}})");
  std::string data = std::string(56, '\0');
  std::string raw;  // the whole file, where it is not empty
  nlohmann::json description = nlohmann::json::parse(R"({
    "entry_point": "sparse_mla_q8kv8_prefill_fwd",
    "args": {"q": {"shape": [2, 64, 576], "dtype": "torch.float8_e4m3fn"},
             "kv": {"shape": [1024, 1, 576], "dtype": "torch.float8_e4m3fn"},
             "indices": {"shape": [2, 1, 256], "dtype": "torch.int32"},
             "sm_scale": 0.0417}})");
  std::string text;  // the whole description, where it is not empty
  std::vector<std::byte> memory = std::vector<std::byte>(64);
  PrefillCall call = small_call(memory.data());

  virtual ~FilesExample() = default;
  virtual void change() = 0;

 private:
  static PrefillCall small_call(std::byte* bytes) {
    PrefillCall call;
    call.q = Tensor(bytes, DType::kFloat8E4M3FN, {1, 1, 16});
    call.kv = Tensor(bytes, DType::kFloat8E4M3FN, {2, 1, 16});
    call.indices = Tensor(bytes, DType::kInt32, {1, 1, 2});
    return call;
  }
};

const std::vector<Example<FilesExample>>& files_examples();

}  // namespace sparse_mla::catalog_test
