#include "cli/reference_check.h"

#include <algorithm>
#include <future>
#include <span>
#include <vector>

#include "base/cores.h"
#include "dispatch/problems.h"
#include "reference/reference.h"

namespace sparse_mla::cli {
namespace {

// Rows of an output, from `row` on, against as many values as the reference has.
Difference difference(const Argument& output, std::int64_t row, std::span<const double> expected) {
  Difference total;
  const Tensor* tensor = output.tensor();
  if (tensor == nullptr) return total;
  const std::int64_t first = row * tensor->strides[0];
  for (std::size_t i = 0; i < expected.size(); ++i) {
    total.add(value_at(*tensor, first + static_cast<std::int64_t>(i), "an output"), expected[i]);
  }
  return total;
}

Accuracy part(const PrefillCall& call, std::int64_t begin, std::int64_t count) {
  const reference::PrefillResult expected = reference::prefill(dispatch::prefill_problem(call), begin, count);
  return {difference(call.out, begin, expected.out), difference(call.max_logits, begin, expected.max_logits),
          difference(call.lse, begin, expected.lse)};
}

Accuracy part(const DecodeCall& call, std::int64_t begin, std::int64_t count) {
  const reference::DecodeResult expected = reference::decode(dispatch::decode_problem(call), begin, count);
  return {difference(call.out, begin, expected.out), {}, difference(call.lse, begin, expected.lse)};
}

Accuracy any_part(const files::AnyCall& call, std::int64_t begin, std::int64_t count) {
  return std::visit([begin, count](const auto& one) { return part(one, begin, count); }, call);
}

}  // namespace

bool Accuracy::ok(const Tolerance& tolerance) const {
  const bool max_logits_ok = max_logits.count() == 0 || max_logits.within_absolute(tolerance.lse);
  const bool lse_ok = lse.count() == 0 || lse.within_absolute(tolerance.lse);
  return out.within(tolerance.out) && max_logits_ok && lse_ok;
}

Accuracy accuracy_of(const files::AnyCall& call, std::int64_t begin, std::int64_t count) {
  const std::int64_t threads = usable_cores();
  const std::int64_t step = std::max<std::int64_t>((count + threads - 1) / threads, 1);
  std::vector<std::future<Accuracy>> parts;
  for (std::int64_t row = begin; row < begin + count; row += step) {
    parts.push_back(
        std::async(std::launch::async, any_part, std::cref(call), row, std::min(step, begin + count - row)));
  }
  Accuracy total;
  for (std::future<Accuracy>& future : parts) {
    const Accuracy accuracy = future.get();
    total.out.add(accuracy.out);
    total.max_logits.add(accuracy.max_logits);
    total.lse.add(accuracy.lse);
  }
  return total;
}

}  // namespace sparse_mla::cli
