// A table of text, columns as wide as their widest cell.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace sparse_mla::cli {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  friend std::ostream& operator<<(std::ostream& out, const Table& table);

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "0.0123" with `digits` significant digits; "1.2e-05" where that is shorter.
std::string number(double value, int digits = 3);

}  // namespace sparse_mla::cli
