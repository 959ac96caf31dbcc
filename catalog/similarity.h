// How much two wordings have in common.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace sparse_mla::catalog {

// The runs of three letters of a text, in lower case, with what is neither letter nor digit as one blank.
using Triples = std::set<std::string, std::less<>>;
Triples triples(std::string_view text);
// 0 where nothing is shared, 1 for equal sets (Dice's coefficient).
double similarity(const Triples& a, const Triples& b);

}  // namespace sparse_mla::catalog
