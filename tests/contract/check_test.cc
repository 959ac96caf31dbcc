// check and enforce as a whole: what the general API takes, options, empty calls, hostile and random calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "contract/valid_calls.h"

namespace sparse_mla::contract_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr DType kFp8 = DType::kFloat8E4M3FN, kF32 = DType::kFloat32, kI32 = DType::kInt32, kBf16 = DType::kBFloat16;

std::vector<std::string_view> slugs_of(const std::vector<Violation>& violations) {
  std::vector<std::string_view> slugs;
  for (const Violation& violation : violations) slugs.push_back(violation.slug);
  return slugs;
}
template <class Valid>
std::vector<std::string_view> broken(const Valid& valid) {
  return slugs_of(check(valid.call, valid.options));
}

// ---- fixes ----------------------------------------------------------------------------------------------------------

TEST(Violation, CarriesFactsAndAFixWithTheCallsValues) {
  ValidPrefill valid;
  valid.call.q = Tensor(nowhere(0), kFp8, {2, 8, 576}, kGpu);
  const std::vector<Violation> violations = check(valid.call, valid.options);
  ASSERT_THAT(violations, Contains(Field(&Violation::slug, "prefill-h-q-multiple-of-64")));
  EXPECT_EQ(violations[0].expected, "a positive multiple of 64");
  EXPECT_EQ(violations[0].got, "8");
  EXPECT_EQ(violations[0].fix,
            "pad q to 64 heads (sparse_mla.pad_heads) or call prefill(), which takes any head count");
}

TEST(Violation, PaddingAdviceIsTheNextMultiple) {
  for (auto [topk, padded] : {std::pair<std::int64_t, std::string>{0, "128"}, {1, "128"}, {129, "256"}, {300, "384"}}) {
    ValidPrefill valid;
    valid.call.indices = Tensor(nowhere(2), kI32, {2, 1, topk}, kGpu);
    valid.lengths = {0, 0, 0, 0};
    const std::vector<Violation> violations = check(valid.call, valid.options);
    ASSERT_EQ(violations.size(), 1u) << topk;
    EXPECT_THAT(violations[0].fix, HasSubstr("pad indices to " + padded + " slots"));
  }
}

// ---- the general API ------------------------------------------------------------------------------------------------

TEST(GeneralPrefill, TakesWhatTheContractRefuses) {
  ValidPrefill valid(Device::cpu());
  valid.options.contract = false;
  valid.call.q = Tensor(nowhere(0), kFp8, {2, 7, 144}, Device::cpu());
  // A slice of a wider pool, and every second head of a wider q.
  valid.call.q = strided(valid.call.q, {14 * 144, 288, 1});
  valid.call.kv = strided(Tensor(nowhere(1), kFp8, {1024, 1, 144}, Device::cpu()), {656, 144, 1});
  valid.call.indices = strided(Tensor(nowhere(2), kI32, {2, 1, 5}, Device::cpu()), {9, 5, 1});
  valid.call.q_scale = std::nullopt;
  valid.call.kv_scale = std::nullopt;
  valid.call.topk_length = std::nullopt;  // with a sink
  valid.call.attn_sink = Tensor(valid.sink.data(), kF32, {7}, Device::cpu());
  valid.call.d_v = 100;
  valid.call.out = Tensor(nowhere(3), kBf16, {2, 7, 100}, Device::cpu());
  valid.call.max_logits = Tensor(nowhere(4), kF32, {2, 7}, Device::cpu());
  valid.call.lse = Tensor(nowhere(5), kF32, {2, 7}, Device::cpu());
  EXPECT_THAT(broken(valid), IsEmpty());
  valid.options.contract = true;
  valid.options.device_rules = false;
  EXPECT_THAT(broken(valid),
              ElementsAre("prefill-q-contiguous", "prefill-kv-contiguous", "prefill-indices-contiguous",
                          "prefill-h-q-multiple-of-64", "prefill-d-qk", "prefill-topk-multiple-of-128", "prefill-d-v",
                          "prefill-attn-sink-needs-topk-length", "prefill-q-scale-tensor", "prefill-kv-scale-tensor"));
}

TEST(GeneralPrefill, SpeaksInItsOwnName) {
  ValidPrefill valid;
  valid.options.contract = false;
  valid.call.kv = Tensor(nowhere(1), kFp8, {1024, 2, 576}, kGpu);
  valid.call.indices = Tensor(nowhere(2), kI32, {2, 2, 256}, kGpu);
  EXPECT_EQ(check(valid.call, valid.options).at(0).message, "prefill requires h_kv=1, got 2");
}

TEST(GeneralPrefill, TensorsOnDifferentDevicesAreRefusedOnACpuToo) {
  ValidPrefill valid(Device::cpu());
  valid.options.contract = false;
  valid.call.kv.device = kGpu;
  EXPECT_EQ(check(valid.call, valid.options).at(0).message, "kv must be on q's device cpu, got cuda:0");
}

TEST(GeneralDecode, TakesWhatTheContractRefuses) {
  ValidDecode valid(Device::cpu());
  valid.make_general(Device::cpu());
  valid.call.attn_sink = std::nullopt;
  EXPECT_THAT(broken(valid), IsEmpty());
  valid.options.contract = true;
  valid.options.device_rules = false;
  EXPECT_THAT(broken(valid), ElementsAre("decode-attn-sink-tensor", "decode-second-pool-in-contract",
                                         "decode-lse-in-contract", "decode-d-v-in-contract"));
}

TEST(GeneralDecode, APoolWithoutScalesNeedsNoWholeGroups) {
  ValidDecode valid;
  valid.options.contract = false;
  valid.call.q = Tensor(nowhere(0), DType::kFloat16, {3, 16, 80}, kGpu);
  valid.call.pool.unified_kv = Tensor(nowhere(1), DType::kFloat16, {40, 80}, kGpu);
  valid.call.pool.kv_scales = std::nullopt;
  valid.call.out = Tensor(nowhere(7), DType::kFloat16, {3, 16, 80}, kGpu);
  EXPECT_THAT(broken(valid), IsEmpty());
}

TEST(Decode, StridedRowsAndStridedScalesAreServed) {
  ValidDecode valid;
  valid.call.q = strided(valid.call.q, {32 * 512, 1024, 1});
  valid.call.pool.unified_kv = strided(valid.call.pool.unified_kv, {656, 1});
  valid.call.pool.kv_scales = strided(valid.call.pool.kv_scales, {16, 2});
  EXPECT_THAT(broken(valid), IsEmpty());
}

// ---- options --------------------------------------------------------------------------------------------------------

TEST(Options, WithoutDeviceRulesACapturedCallIsCheckedOnACpu) {
  ValidPrefill prefill(Device::cpu());
  EXPECT_THAT(broken(prefill), Contains("prefill-q-cuda"));
  prefill.options.device_rules = false;
  prefill.call.kv.device = kGpu;
  EXPECT_THAT(broken(prefill), IsEmpty());
  prefill.call.kv.data = static_cast<char*>(prefill.call.kv.data) + 1;  // alignment is a device's rule
  EXPECT_THAT(broken(prefill), IsEmpty());

  ValidDecode decode(Device::cpu());
  EXPECT_THAT(broken(decode), ElementsAre("decode-q-cuda"));
  decode.options.device_rules = false;
  EXPECT_THAT(broken(decode), IsEmpty());
}

TEST(Options, WithoutRunRulesADescriptionNeedsNoMemoryAndNoOutputs) {
  ValidPrefill valid;
  valid.options.run_rules = false;
  valid.call.q.data = nullptr;
  valid.call.out = valid.call.max_logits = valid.call.lse = std::nullopt;
  EXPECT_THAT(broken(valid), IsEmpty());
  valid.options.run_rules = true;
  EXPECT_THAT(broken(valid), ElementsAre("prefill-output-missing", "prefill-memory"));
}

TEST(Options, OutputsDescribedWithoutAddressesDoNotAlias) {
  ValidPrefill valid;
  valid.options.run_rules = false;
  valid.call.max_logits = Tensor(nullptr, kF32, {2, 64}, kGpu);
  valid.call.lse = Tensor(nullptr, kF32, {2, 64}, kGpu);
  EXPECT_THAT(broken(valid), IsEmpty());
}

// ---- empty calls ----------------------------------------------------------------------------------------------------

TEST(Empty, NoQueriesIsAValidCall) {
  ValidPrefill valid;
  valid.call.q = Tensor(nullptr, kFp8, {0, 64, 576}, kGpu);
  valid.call.indices = Tensor(nullptr, kI32, {0, 1, 256}, kGpu);
  valid.call.topk_length = Tensor(nullptr, kI32, {0}, kGpu);
  valid.call.out = Tensor(nullptr, kBf16, {0, 64, 512}, kGpu);
  valid.call.max_logits = Tensor(nullptr, kF32, {0, 64}, kGpu);
  valid.call.lse = Tensor(nullptr, kF32, {0, 64}, kGpu);
  EXPECT_THAT(broken(valid), IsEmpty());
  valid.call.kv = Tensor(nullptr, kFp8, {0, 1, 576}, kGpu);
  EXPECT_THAT(broken(valid), IsEmpty());
}

TEST(Empty, NoTokensAndNoPagesIsAValidCall) {
  ValidDecode valid;
  valid.first.indptr = {0};
  valid.call.q = Tensor(nullptr, kBf16, {0, 16, 512}, kGpu);
  valid.call.out = Tensor(nullptr, kBf16, {0, 16, 512}, kGpu);
  valid.call.pool.kv_indptr = Tensor(valid.first.indptr.data(), kI32, {1}, kGpu);
  valid.call.pool.kv_indices = Tensor(nullptr, kI32, {0}, kGpu);
  valid.call.pool.unified_kv = Tensor(nullptr, kFp8, {0, 512}, kGpu);
  valid.call.pool.kv_scales = Tensor(nullptr, kF32, {0, 8}, kGpu);
  EXPECT_THAT(broken(valid), IsEmpty());
}

TEST(Empty, EmptyOutputsAtOneAddressDoNotAlias) {
  ValidPrefill valid;
  valid.call.q = Tensor(nullptr, kFp8, {0, 64, 576}, kGpu);
  valid.call.indices = Tensor(nullptr, kI32, {0, 1, 256}, kGpu);
  valid.call.topk_length = Tensor(nullptr, kI32, {0}, kGpu);
  valid.call.out = Tensor(nowhere(3), kBf16, {0, 64, 512}, kGpu);
  valid.call.max_logits = Tensor(nowhere(3), kF32, {0, 64}, kGpu);
  valid.call.lse = Tensor(nowhere(3), kF32, {0, 64}, kGpu);
  EXPECT_THAT(broken(valid), IsEmpty());
}

TEST(Alias, NeighboursAreApartAndOneSharedByteIsNot) {
  ValidPrefill valid;
  const std::int64_t bytes = 2 * 64 * 4;
  char* base = static_cast<char*>(nowhere(4));
  for (auto [offset, aliases] : {std::pair<std::int64_t, bool>{bytes, false},
                                 {bytes - 1, true},
                                 {0, true},
                                 {-bytes, false},
                                 {-bytes + 1, true}}) {
    valid.call.lse = Tensor(base + offset, kF32, {2, 64}, kGpu);
    EXPECT_EQ(!broken(valid).empty(), aliases) << offset;
  }
  // The last bytes of the address space do not wrap around to the first.
  valid.call.max_logits = Tensor(reinterpret_cast<void*>(~std::uintptr_t{0} - 15), kF32, {2, 64}, kGpu);
  valid.call.lse = Tensor(reinterpret_cast<void*>(std::uintptr_t{16}), kF32, {2, 64}, kGpu);
  EXPECT_THAT(broken(valid), IsEmpty());
}

// ---- hostile and random calls ---------------------------------------------------------------------------------------

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[engine_() % values.size()];
  }
  bool one_in(int n) { return engine_() % static_cast<std::uint64_t>(n) == 0; }
  std::uint64_t next() { return engine_(); }

  std::int64_t size() {
    return pick<std::int64_t>({0,
                               1,
                               2,
                               3,
                               8,
                               16,
                               40,
                               64,
                               128,
                               256,
                               512,
                               576,
                               1024,
                               -1,
                               std::int64_t{1} << 31,
                               std::int64_t{1} << 40,
                               kMax,
                               kMin,
                               kMax - 63,
                               12345678901});
  }
  Tensor tensor() {
    std::array<std::int64_t, kMaxRank> sizes{}, steps{};
    const std::size_t rank = next() % (kMaxRank + 1);
    for (std::size_t d = 0; d < rank; ++d) {
      sizes[d] = size();
      steps[d] = size();
    }
    const DType dtype = static_cast<DType>(next() % kDTypeCount);
    const Device device = pick<Device>({Device::cpu(), kGpu, Device::cuda(1), Device{Device::Kind::kMeta, 0}});
    void* data = pick<void*>({nullptr, nowhere(next() % 4), reinterpret_cast<void*>(next())});
    const std::span<const std::int64_t> shape(sizes.data(), rank);
    return one_in(2) ? Tensor(data, dtype, shape, device)
                     : Tensor(data, dtype, shape, std::span<const std::int64_t>(steps.data(), rank), device);
  }
  // Something else in place of `tensor`, a little or altogether.
  void disturb(Tensor& target) {
    switch (next() % 6) {
      case 0:
        target = tensor();
        break;
      case 1:
        target.device = tensor().device;
        break;
      case 2:
        target.dtype = tensor().dtype;
        break;
      case 3:
        target.shape[next() % kMaxRank] = size();
        break;
      case 4:
        target.strides[next() % kMaxRank] = size();
        break;
      default:
        target.data = tensor().data;
    }
  }
  void disturb(Argument& target) {
    if (one_in(4)) {
      target = std::nullopt;
    } else if (one_in(6) || target.tensor() == nullptr) {
      target = NotATensor{"int"};
    } else {
      Tensor changed = *target.tensor();
      disturb(changed);
      target = changed;
    }
  }
  CheckOptions options(const ValueSource& values) {
    return {.contract = one_in(2),
            .device_rules = one_in(2),
            .values = one_in(2),
            .value_source = &values,
            .run_rules = one_in(2)};
  }

 private:
  std::mt19937_64 engine_;
};

// Answers without reading: addresses of random calls lead nowhere.
class DiceValues final : public ValueSource {
 public:
  explicit DiceValues(std::uint64_t seed) : seed_(seed) {}
  std::optional<Offender> first_outside(std::string_view argument, const Tensor& tensor, std::int64_t low,
                                        std::int64_t high) const override {
    EXPECT_EQ(tensor.dtype, DType::kInt32) << argument;
    EXPECT_LE(low, high) << argument;
    return answer(argument);
  }
  std::optional<Offender> first_decrease(std::string_view argument, const Tensor& tensor) const override {
    EXPECT_EQ(tensor.rank, 1) << argument;
    EXPECT_EQ(tensor.dtype, DType::kInt32) << argument;
    return answer(argument);
  }
  std::optional<Offender> first_not_finite(std::string_view argument, const Tensor& tensor) const override {
    EXPECT_EQ(tensor.dtype, DType::kFloat32) << argument;
    return answer(argument);
  }

 private:
  std::optional<Offender> answer(std::string_view argument) const {
    if ((seed_ ^ argument.size()) % 3 != 0) return std::nullopt;
    return Offender{.position = static_cast<std::int64_t>(seed_ % 100), .value = 1.5, .previous = 2};
  }
  std::uint64_t seed_;
};

template <class Call>
void expect_check_and_enforce_agree(const Call& call, const CheckOptions& options) {
  const std::vector<Violation> violations = check(call, options);
  for (const Violation& violation : violations) {
    EXPECT_THAT(violation.message, Not(HasSubstr("{"))) << violation.slug;
    EXPECT_THAT(violation.fix, Not(HasSubstr("{"))) << violation.slug;
    EXPECT_THAT(violation.argument, Not(IsEmpty())) << violation.slug;
  }
  try {
    enforce(call, options);
    EXPECT_THAT(slugs_of(violations), IsEmpty());
  } catch (const ContractError& error) {
    ASSERT_THAT(violations, Not(IsEmpty()));
    EXPECT_EQ(error.violation().slug, violations.front().slug);
    EXPECT_EQ(error.violation().message, violations.front().message);
  }
}

TEST(RandomCalls, PrefillCheckAndEnforceAgree) {
  constexpr int kCalls = 20000;
  int refused = 0;
  for (int seed = 0; seed < kCalls; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    ValidPrefill valid(dice.pick<Device>({Device::cpu(), kGpu}));
    PrefillCall& call = valid.call;
    for (Tensor* tensor : {&call.q, &call.kv, &call.indices}) {
      if (dice.one_in(5)) dice.disturb(*tensor);
    }
    for (Argument* argument :
         {&call.q_scale, &call.kv_scale, &call.attn_sink, &call.topk_length, &call.out, &call.max_logits, &call.lse}) {
      if (dice.one_in(10)) dice.disturb(*argument);
    }
    if (dice.one_in(8)) call.d_v = dice.size();
    const DiceValues values(dice.next());
    const CheckOptions options = dice.options(values);
    expect_check_and_enforce_agree(call, options);
    refused += check(call, options).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, kCalls / 2);
  EXPECT_LT(refused, kCalls * 99 / 100);
}

TEST(RandomCalls, DecodeCheckAndEnforceAgree) {
  constexpr int kCalls = 20000;
  int refused = 0;
  for (int seed = 0; seed < kCalls; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    const Device device = dice.pick<Device>({Device::cpu(), kGpu});
    ValidDecode valid(device);
    if (dice.one_in(2)) valid.make_general(device);
    DecodeCall& call = valid.call;
    std::vector<Tensor*> tensors{&call.q, &call.pool.unified_kv, &call.pool.kv_indices, &call.pool.kv_indptr};
    std::vector<Argument*> arguments{&call.pool.kv_scales, &call.attn_sink, &call.out, &call.lse};
    if (call.second_pool) {
      tensors.push_back(&call.second_pool->unified_kv);
      tensors.push_back(&call.second_pool->kv_indptr);
      arguments.push_back(&call.second_pool->kv_scales);
    }
    for (Tensor* tensor : tensors) {
      if (dice.one_in(6)) dice.disturb(*tensor);
    }
    for (Argument* argument : arguments) {
      if (dice.one_in(10)) dice.disturb(*argument);
    }
    if (dice.one_in(8)) call.d_v = dice.size();
    const DiceValues values(dice.next());
    const CheckOptions options{.contract = call.second_pool ? dice.one_in(4) : dice.one_in(2),
                               .device_rules = dice.one_in(2),
                               .values = dice.one_in(2),
                               .value_source = &values,
                               .run_rules = dice.one_in(2)};
    expect_check_and_enforce_agree(call, options);
    refused += check(call, options).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, kCalls / 2);
  EXPECT_LT(refused, kCalls * 99 / 100);
}

TEST(HostileCalls, ACallOfDefaultsIsRefusedByName) {
  EXPECT_EQ(check(PrefillCall{}).at(0).message, "q must have shape (s_q, h_q, d_qk), got ()");
  EXPECT_EQ(check(DecodeCall{}).at(0).message, "sparse_attn_v4_paged_decode requires CUDA tensors");
}

TEST(HostileCalls, EightDimensionsAreRefusedByName) {
  ValidPrefill valid;
  valid.call.q = Tensor(nowhere(0), kFp8, {1, 1, 1, 1, 1, 2, 64, 576}, kGpu);
  EXPECT_EQ(check(valid.call, valid.options).at(0).message,
            "q must have shape (s_q, h_q, d_qk), got (1, 1, 1, 1, 1, 2, 64, 576)");
}

TEST(HostileCalls, SizesWhoseProductWrapsToNothingAreNotEmpty) {
  ValidPrefill valid;
  const std::int64_t half = std::int64_t{1} << 32;
  valid.call.kv = Tensor(nowhere(1), kFp8, {half, 1, half}, kGpu);  // 2^64 values
  EXPECT_THAT(broken(valid), ElementsAre("prefill-kv-width", "prefill-span"));
}

}  // namespace
}  // namespace sparse_mla::contract_test
