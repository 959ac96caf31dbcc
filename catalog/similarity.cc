#include "catalog/similarity.h"

namespace sparse_mla::catalog {

Triples triples(std::string_view text) {
  std::string letters = " ";
  for (char letter : text) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
    const bool counts = (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9');
    if (counts) {
      letters += letter;
    } else if (letters.back() != ' ') {
      letters += ' ';
    }
  }
  if (letters.back() != ' ' || letters.size() == 1) letters += ' ';
  Triples found;
  for (std::size_t i = 0; i + 3 <= letters.size(); ++i) found.insert(letters.substr(i, 3));
  return found;
}

double similarity(const Triples& a, const Triples& b) {
  if (a.empty() && b.empty()) return 0;
  std::size_t common = 0;
  for (const std::string& triple : a) common += b.contains(triple) ? 1 : 0;
  return 2.0 * static_cast<double>(common) / static_cast<double>(a.size() + b.size());
}

}  // namespace sparse_mla::catalog
