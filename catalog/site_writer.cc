#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "catalog/catalog.h"

namespace sparse_mla::catalog {

const SiteFile* site_file(std::string_view path) noexcept {
  const auto files = site();
  const auto at = std::ranges::lower_bound(files, path, {}, &SiteFile::path);
  return at != files.end() && at->path == path ? &*at : nullptr;
}

void write_site(const std::string& folder) {
  for (const SiteFile& file : site()) {
    const std::filesystem::path path = std::filesystem::path(folder) / file.path;
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) throw std::runtime_error(path.parent_path().string() + ": cannot be made: " + error.message());
    std::ofstream stream(path, std::ios::binary);
    stream.write(file.content.data(), static_cast<std::streamsize>(file.content.size()));
    if (!stream.flush()) throw std::runtime_error(path.string() + ": cannot be written");
  }
}

}  // namespace sparse_mla::catalog
