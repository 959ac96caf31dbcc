#include "cli/table.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace sparse_mla::cli {

std::ostream& operator<<(std::ostream& out, const Table& table) {
  std::vector<std::size_t> widths;
  for (const std::vector<std::string>& row : table.rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const std::vector<std::string>& row : table.rows_) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      out << row[i] << std::string(widths[i] - row[i].size() + 2, ' ');
    }
    out << row.back() << '\n';
  }
  return out;
}

std::string number(double value, int digits) {
  std::ostringstream text;
  text << std::setprecision(digits) << value;
  return text.str();
}

}  // namespace sparse_mla::cli
