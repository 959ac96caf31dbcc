// Every record's C++ example is true: what stands first breaks the very rule, what stands second breaks none.
#include <gmock/gmock.h>

#include <set>

#include "catalog/decode_preamble.h"
#include "catalog/files_preamble.h"
#include "catalog/kv_preamble.h"
#include "catalog/prefill_preamble.h"
#include "contract/cases.h"
#include "files/captured_call.h"
#include "files/description.h"

namespace sparse_mla::catalog_test {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

// Values that an example puts where nothing can be read are not looked at.
bool has_readable_values(std::string_view slug) { return !slug.ends_with("-alignment") && slug != "kv-transfer-int32"; }

void prepare(KvExample& example, std::string_view how) { contract_test::prepare(example.valid, how == "append"); }
template <class Base>
void prepare(Base& example, bool contract) {
  contract_test::prepare(example.valid, contract);
}

template <class Base>
std::vector<std::string_view> broken_by(const Example<Base>& example, typename Example<Base>::Make make) {
  const std::unique_ptr<Base> one = make();
  prepare(*one, example.how);
  one->valid.options.values = has_readable_values(example.slug);
  one->change();
  std::vector<std::string_view> slugs;
  for (const Violation& violation : check(one->call, one->valid.options)) slugs.push_back(violation.slug);
  return slugs;
}

template <class Base>
void expect_all_true(const std::vector<Example<Base>>& examples) {
  for (const Example<Base>& example : examples) {
    SCOPED_TRACE(example.slug);
    if (example.before != nullptr) {
      EXPECT_THAT(broken_by(example, example.before), Contains(example.slug));
    }
    EXPECT_THAT(broken_by(example, example.after), IsEmpty());
  }
}

TEST(Examples, AboutPrefillAreTrue) { expect_all_true(prefill_examples()); }
TEST(Examples, AboutDecodeAreTrue) { expect_all_true(decode_examples()); }
TEST(Examples, AboutTransfersAreTrue) { expect_all_true(kv_examples()); }

std::string content_of(const FilesExample& example, std::string_view how) {
  if (how == "description") return example.text.empty() ? example.description.dump() : example.text;
  return example.raw.empty() ? with_length(example.header.dump()) + example.data : example.raw;
}

void use(const FilesExample& example, std::string_view how) {
  if (how == "write") {
    files::write_captured_call(example.path, example.call);
  } else if (how == "result") {
    files::read_result(example.path);
  } else if (how == "description") {
    files::read_description(example.path);
  } else {
    files::read_captured_call(example.path);
  }
}

// The slug of what is refused; empty where nothing is.
std::string_view refused(const Example<FilesExample>& example, Example<FilesExample>::Make make) {
  const std::unique_ptr<FilesExample> one = make();
  const std::string path = one->path;
  one->folder.write("call.safetensors", content_of(*one, example.how));
  one->change();
  if (one->path == path) one->folder.write("call.safetensors", content_of(*one, example.how));
  try {
    use(*one, example.how);
  } catch (const files::FileError& error) {
    return error.slug();
  }
  return "";
}

TEST(Examples, AboutFilesAreTrue) {
  for (const Example<FilesExample>& example : files_examples()) {
    SCOPED_TRACE(example.slug);
    if (example.before != nullptr) {
      EXPECT_EQ(refused(example, example.before), example.slug);
    }
    EXPECT_EQ(refused(example, example.after), "");
  }
}

TEST(Examples, ThereIsOneForEachRuleAndFault) {
  std::set<std::string_view> told, known;
  for (const auto& example : prefill_examples()) told.insert(example.slug);
  for (const auto& example : decode_examples()) told.insert(example.slug);
  for (const auto& example : kv_examples()) told.insert(example.slug);
  for (const auto& example : files_examples()) told.insert(example.slug);
  for (const RuleInfo& rule : rules()) known.insert(rule.slug);
  for (const files::FaultInfo& fault : files::kFaults) known.insert(fault.slug);
  EXPECT_EQ(told, known);
}

}  // namespace
}  // namespace sparse_mla::catalog_test
