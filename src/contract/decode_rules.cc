// The rules of sparse_attn_v4_paged_decode and of the general decode. Their order is the contract's: B1 to B7, then
// what else a kernel could be hurt by (id "B8"), then the general API's own (id "D"), its second pool included.
#include <limits>

#include "contract/families.h"

namespace sparse_mla::contract {
namespace {

using DecodeRule = Rule<DecodeCall>;
using In = Input<DecodeCall>;
using Broken = std::optional<Facts>;

template <Text kText, auto kMember>
struct Arg {
  using Call = DecodeCall;
  static constexpr auto kName = kText;
  static const Tensor* tensor(const DecodeCall& call) { return tensor_of(call.*kMember); }
  static const Argument* argument(const DecodeCall& call) { return argument_of(call.*kMember); }
};

// The two pools: the same rules under two prefixes.
struct FirstPool {
  static constexpr Text kPrefix = "";
  static constexpr std::uint32_t kKvKnown = kKvRank;
  static constexpr std::uint32_t kIndicesKnown = kIndicesRank;
  static const PagedPool* of(const DecodeCall& call) { return &call.pool; }
};
struct SecondPool {
  static constexpr Text kPrefix = "second_pool.";
  static constexpr std::uint32_t kKvKnown = kSecondKvRank;
  static constexpr std::uint32_t kIndicesKnown = kSecondIndicesRank;
  static const PagedPool* of(const DecodeCall& call) { return call.second_pool ? &*call.second_pool : nullptr; }
};

template <class Pool, Text kText, auto kMember>
struct PoolArg {
  using Call = DecodeCall;
  static constexpr auto kName = join(Pool::kPrefix, kText);
  static const Tensor* tensor(const DecodeCall& call) {
    const PagedPool* pool = Pool::of(call);
    return pool == nullptr ? nullptr : tensor_of(pool->*kMember);
  }
  static const Argument* argument(const DecodeCall& call) {
    const PagedPool* pool = Pool::of(call);
    return pool == nullptr ? nullptr : argument_of(pool->*kMember);
  }
};

using Q = Arg<"q", &DecodeCall::q>;
using AttnSink = Arg<"attn_sink", &DecodeCall::attn_sink>;
template <class Pool>
using UnifiedKv = PoolArg<Pool, "unified_kv", &PagedPool::unified_kv>;
template <class Pool>
using KvIndices = PoolArg<Pool, "kv_indices", &PagedPool::kv_indices>;
template <class Pool>
using KvIndptr = PoolArg<Pool, "kv_indptr", &PagedPool::kv_indptr>;

// Sizes, where Known says that the rank is right.
std::int64_t n(const DecodeCall& call) { return call.q.shape[0]; }
std::int64_t heads(const DecodeCall& call) { return call.q.shape[1]; }
std::int64_t width(const DecodeCall& call) { return call.q.shape[2]; }
std::int64_t total_pages(const PagedPool& pool) { return pool.unified_kv.shape[0]; }
std::int64_t pool_width(const PagedPool& pool) { return pool.unified_kv.shape[1]; }
std::int64_t value_width(const DecodeCall& call) { return call.d_v == 0 ? width(call) : call.d_v; }

constexpr std::int64_t kGroupSize = 64;
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

bool is_half_precision(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }
template <class Pool>
struct KvScales : PoolArg<Pool, "kv_scales", &PagedPool::kv_scales> {
  static bool has_its_shape(const DecodeCall& call) {
    const PagedPool& pool = *Pool::of(call);
    if (pool.unified_kv.rank != 2) return false;
    return has_shape(*pool.kv_scales.tensor(), {total_pages(pool), pool_width(pool) / kGroupSize});
  }
};
// The rules on kv_indptr's shape, dtype and layout demand it; the rules on its values read only such a tensor.
bool has_one_offset_more_than_tokens(const Tensor& indptr, const DecodeCall& call) {
  return indptr.rank == 1 && indptr.shape[0] >= 1 && indptr.shape[0] - 1 == n(call);
}
// n + 1, without overflow.
std::string one_more(std::int64_t n) {
  return n >= 0 ? std::to_string(static_cast<std::uint64_t>(n) + 1) : std::to_string(n + 1);
}
const Tensor* readable_indptr(const PagedPool* pool, const In& in) {
  if (pool == nullptr) return nullptr;
  const Tensor& indptr = pool->kv_indptr;
  const bool fits = has_one_offset_more_than_tokens(indptr, in.call) && indptr.dtype == DType::kInt32;
  return fits && indptr.is_contiguous() && is_within_reach(indptr, in) ? &indptr : nullptr;
}

struct Out : Arg<"out", &DecodeCall::out> {
  static constexpr std::uint32_t kShapeNeeds = kQRank | kValueWidth;
  static constexpr std::uint32_t kDTypeNeeds = kQDType;
  static std::array<std::int64_t, 3> expected_shape(const DecodeCall& call) {
    return {n(call), heads(call), value_width(call)};
  }
  static DType expected_dtype(const DecodeCall& call) { return call.q.dtype; }
};
struct Lse : Arg<"lse", &DecodeCall::lse> {
  static constexpr std::uint32_t kShapeNeeds = kQRank;
  static constexpr std::uint32_t kDTypeNeeds = kNothing;
  static std::array<std::int64_t, 2> expected_shape(const DecodeCall& call) { return {n(call), heads(call)}; }
  static DType expected_dtype(const DecodeCall&) { return DType::kFloat32; }
};

using All = Tensors<DecodeCall, Q, UnifiedKv<FirstPool>, KvIndices<FirstPool>, KvIndptr<FirstPool>, KvScales<FirstPool>,
                    AttnSink, Out, Lse, UnifiedKv<SecondPool>, KvIndices<SecondPool>, KvIndptr<SecondPool>,
                    KvScales<SecondPool>>;

// Slug and words of a rule about one pool.
template <class Pool, Text kWhat>
constexpr std::string_view pool_slug = joined<Text("decode-"), dashed(Pool::kPrefix), Text(kWhat)>;
template <class Pool, Text... kWords>
constexpr std::string_view in_pool = joined<Pool::kPrefix, kWords...>;

// ---- B3 to B7: the pool's dtype and scales --------------------------------------------------------------------------

template <class Pool>
constexpr DecodeRule scales_come_with_e4m3fn(std::string_view id) {
  return {.id = id,
          .slug = pool_slug<Pool, "kv-scales-need-e4m3fn">,
          .argument = UnifiedKv<Pool>::kName.view(),
          .message = joined<Pool::kPrefix, Text("kv_scales supplied but "), Pool::kPrefix,
                            Text("unified_kv is {dtype}, expected torch.float8_e4m3fn")>,
          .fix = joined<Text("leave "), Pool::kPrefix,
                        Text("kv_scales out for a {dtype} pool, or pass the e4m3fn pool "
                             "that the scales belong to")>,
          .check = [](const In& in) -> Broken {
            const PagedPool* pool = Pool::of(in.call);
            if (pool == nullptr || pool->kv_scales.is_none()) return std::nullopt;
            const Tensor& kv = pool->unified_kv;
            if (kv.dtype == DType::kFloat8E4M3FN) return std::nullopt;
            return Facts{.expected = "torch.float8_e4m3fn", .got = dtype_string(kv), .tensor = &kv};
          }};
}

template <class Pool>
constexpr DecodeRule width_is_whole_groups(std::string_view id) {
  return {.id = id,
          .slug = pool_slug<Pool, "width-multiple-of-64">,
          .argument = UnifiedKv<Pool>::kName.view(),
          .needs = Pool::kKvKnown,
          .message = in_pool<Pool, "D={D} must be divisible by GROUP_SIZE=64">,
          .fix = "pad q's and unified_kv's rows from {D} to {padded_D} values with zeros",
          .check = [](const In& in) -> Broken {
            const PagedPool* pool = Pool::of(in.call);
            if (pool == nullptr || pool_width(*pool) % kGroupSize == 0) return std::nullopt;
            // The contract demands it of every pool, the general API where scales are shared by groups.
            if (!in.options.contract && pool->kv_scales.is_none()) return std::nullopt;
            const std::int64_t d = pool_width(*pool);
            const bool fits = d > 0 && d <= std::numeric_limits<std::int64_t>::max() - kGroupSize;
            const std::int64_t padded_d = fits ? (d + kGroupSize - 1) / kGroupSize * kGroupSize : kGroupSize;
            return Facts{.expected = "a multiple of 64",
                         .got = std::to_string(d),
                         .fields = {{"D", std::to_string(d)}, {"padded_D", std::to_string(padded_d)}}};
          }};
}

template <class Pool>
constexpr DecodeRule scales_shape(std::string_view id) {
  return {.id = id,
          .slug = pool_slug<Pool, "kv-scales-shape">,
          .argument = KvScales<Pool>::kName.view(),
          .needs = Pool::kKvKnown,
          .message = in_pool<Pool, "kv_scales shape {shape} does not match expected ({total_pages}, {groups})">,
          .fix = joined<Text("pass one float32 scale for 64 values of a row: "), Pool::kPrefix,
                        Text("kv_scales of shape ({total_pages}, {groups})")>,
          .check = [](const In& in) -> Broken {
            const Tensor* scales = KvScales<Pool>::tensor(in.call);
            if (scales == nullptr) return std::nullopt;
            const PagedPool& pool = *Pool::of(in.call);
            // Without whole groups there is no right shape.
            if (pool_width(pool) % kGroupSize != 0 || KvScales<Pool>::has_its_shape(in.call)) return std::nullopt;
            const std::int64_t groups = pool_width(pool) / kGroupSize;
            return Facts{
                .expected = tuple({total_pages(pool), groups}),
                .got = shape_string(*scales),
                .tensor = scales,
                .fields = {{"total_pages", std::to_string(total_pages(pool))}, {"groups", std::to_string(groups)}}};
          }};
}

template <class Pool>
constexpr DecodeRule kv_dtype_is_q_dtype(std::string_view id) {
  return {.id = id,
          .slug = pool_slug<Pool, "unified-kv-dtype">,
          .argument = UnifiedKv<Pool>::kName.view(),
          .message = in_pool<Pool, "unified_kv dtype mismatch: kv={dtype}, q={q_dtype}">,
          .fix = joined<Text("store "), Pool::kPrefix,
                        Text("unified_kv as {q_dtype}, or as torch.float8_e4m3fn with "
                             "kv_scales")>,
          .check = [](const In& in) -> Broken {
            const PagedPool* pool = Pool::of(in.call);
            if (pool == nullptr || !pool->kv_scales.is_none()) return std::nullopt;
            const Tensor& kv = pool->unified_kv;
            if (kv.dtype == in.call.q.dtype) return std::nullopt;
            return Facts{.expected = dtype_string(in.call.q), .got = dtype_string(kv), .tensor = &kv};
          }};
}

// B3 to B7, in order.
template <class Pool>
constexpr std::array<DecodeRule, 5> pool_dtype_rules(std::array<std::string_view, 5> ids) {
  return {scales_come_with_e4m3fn<Pool>(ids[0]), is_float32<KvScales<Pool>, "fp32">(ids[1]),
          width_is_whole_groups<Pool>(ids[2]), scales_shape<Pool>(ids[3]), kv_dtype_is_q_dtype<Pool>(ids[4])};
}

// ---- B8 for a pool --------------------------------------------------------------------------------------------------

template <class Pool>
constexpr std::array<DecodeRule, 5> pool_shape_rules(std::string_view id) {
  return {
      DecodeRule{.id = id,
                 .slug = pool_slug<Pool, "unified-kv-rank">,
                 .argument = UnifiedKv<Pool>::kName.view(),
                 .message = in_pool<Pool, "unified_kv must have shape (total_pages, D), got {shape}">,
                 .fix = joined<Text("view it as one row a slot: "), Pool::kPrefix,
                               Text("unified_kv.view(-1, unified_kv.shape[-1])")>,
                 .check = [](const In& in) -> Broken {
                   const Tensor* kv = UnifiedKv<Pool>::tensor(in.call);
                   if (kv == nullptr || in.knows(Pool::kKvKnown)) return std::nullopt;
                   return wrong_shape("(total_pages, D)", *kv);
                 }},
      DecodeRule{
          .id = id,
          .slug = pool_slug<Pool, "kv-indices-rank">,
          .argument = KvIndices<Pool>::kName.view(),
          .message = in_pool<Pool, "kv_indices must have shape (total_indices,), got {shape}">,
          .fix = joined<Text("pass one flat list of all tokens' slots: "), Pool::kPrefix, Text("kv_indices.flatten()")>,
          .check = [](const In& in) -> Broken {
            const Tensor* indices = KvIndices<Pool>::tensor(in.call);
            if (indices == nullptr || in.knows(Pool::kIndicesKnown)) return std::nullopt;
            return wrong_shape("(total_indices,)", *indices);
          }},
      DecodeRule{.id = id,
                 .slug = pool_slug<Pool, "kv-indptr-shape">,
                 .argument = KvIndptr<Pool>::kName.view(),
                 .needs = kQRank,
                 .message = in_pool<Pool, "kv_indptr must have shape ({N_plus_1},), got {shape}">,
                 .fix = "pass a prefix sum of the tokens' slot counts that starts at 0: one offset more than q's "
                        "{N} tokens",
                 .check = [](const In& in) -> Broken {
                   const Tensor* indptr = KvIndptr<Pool>::tensor(in.call);
                   if (indptr == nullptr || has_one_offset_more_than_tokens(*indptr, in.call)) return std::nullopt;
                   return wrong_shape(concat({"(", one_more(n(in.call)), ",)"}), *indptr);
                 }},
      is_a_tensor<KvScales<Pool>, None::kAllowed>(id),
      DecodeRule{.id = id,
                 .slug = pool_slug<Pool, "width-match">,
                 .argument = UnifiedKv<Pool>::kName.view(),
                 .needs = kQRank | Pool::kKvKnown,
                 .message = in_pool<Pool, "unified_kv D must match q D={q_D}, got {kv_D}">,
                 .fix = "pass q and unified_kv of one width: q has {q_D} values a head, unified_kv {kv_D} a row",
                 .check = [](const In& in) -> Broken {
                   const PagedPool* pool = Pool::of(in.call);
                   if (pool == nullptr || pool_width(*pool) == width(in.call)) return std::nullopt;
                   Facts facts = wrong_number(std::to_string(width(in.call)), pool_width(*pool));
                   facts.fields = {{"q_D", facts.expected}, {"kv_D", facts.got}};
                   return facts;
                 }}};
}

template <class Pool>
constexpr std::array<DecodeRule, 9> pool_layout_rules(std::string_view id) {
  return {is_on_q_device<UnifiedKv<Pool>, false>(id),
          is_on_q_device<KvIndices<Pool>, false>(id),
          is_on_q_device<KvIndptr<Pool>, false>(id),
          is_on_q_device<KvScales<Pool>, false>(id),
          is_int32<KvIndices<Pool>>(id),
          is_int32<KvIndptr<Pool>>(id),
          last_dim_contiguous<UnifiedKv<Pool>>(id),
          is_contiguous<KvIndices<Pool>>(id),
          is_contiguous<KvIndptr<Pool>>(id)};
}

template <class Pool>
constexpr std::array<DecodeRule, 3> pool_value_rules(std::string_view id) {
  return {
      DecodeRule{.id = id,
                 .slug = pool_slug<Pool, "kv-indptr-range">,
                 .argument = KvIndptr<Pool>::kName.view(),
                 .stage = RuleStage::kValues,
                 .needs = kQRank | Pool::kIndicesKnown,
                 .message = in_pool<Pool,
                                    "kv_indptr values must satisfy 0 <= kv_indptr <= total_indices "
                                    "({total_indices}), got {value} at {position}">,
                 .fix = "make kv_indptr the prefix sum of the slot counts: 0 first, {total_indices} last",
                 .check = [](const In& in) -> Broken {
                   const Tensor* indptr = readable_indptr(Pool::of(in.call), in);
                   if (indptr == nullptr) return std::nullopt;
                   constexpr std::string_view kName = KvIndptr<Pool>::kName.view();
                   const std::int64_t total = KvIndices<Pool>::tensor(in.call)->shape[0];
                   if (total < 0) return std::nullopt;
                   const auto offender = in.values.first_outside(kName, *indptr, 0, total);
                   if (!offender) return std::nullopt;
                   const std::string last = std::to_string(total);
                   Facts facts = offender_facts(kName, *indptr, *offender, concat({"values from 0 to ", last}));
                   facts.fields.push_back({"total_indices", last});
                   return facts;
                 }},
      DecodeRule{
          .id = id,
          .slug = pool_slug<Pool, "kv-indptr-order">,
          .argument = KvIndptr<Pool>::kName.view(),
          .stage = RuleStage::kValues,
          .needs = kQRank,
          .message = in_pool<Pool, "kv_indptr must not decrease, got {value} after {previous} at {position}">,
          .fix = "make kv_indptr the prefix sum of the slot counts, which are 0 or more",
          .check = [](const In& in) -> Broken {
            const Tensor* indptr = readable_indptr(Pool::of(in.call), in);
            if (indptr == nullptr) return std::nullopt;
            constexpr std::string_view kName = KvIndptr<Pool>::kName.view();
            const auto offender = in.values.first_decrease(kName, *indptr);
            if (!offender) return std::nullopt;
            return offender_facts(kName, *indptr, *offender, concat({"at least ", number_string(offender->previous)}));
          }},
      is_finite<KvScales<Pool>>(id)};
}

// ---- the table ------------------------------------------------------------------------------------------------------

constexpr auto kQRules = std::to_array<DecodeRule>({
    {.id = "B1",
     .slug = "decode-q-cuda",
     .argument = "q",
     .scope = RuleScope::kContract,
     .stage = RuleStage::kDevice,
     .message = "{call} requires CUDA tensors",
     .fix = "move the call's tensors to the GPU, or call decode(), which takes CPU tensors",
     .check = off_cuda<Q>},
    {.id = "B2",
     .slug = "decode-q-dtype",
     .argument = "q",
     .message = "{call} expects fp16/bf16 q, got {dtype}",
     .fix = "convert it: q.to(torch.bfloat16)",
     .check = [](const In& in) -> Broken {
       if (in.knows(kQDType)) return std::nullopt;
       return Facts{
           .expected = "torch.float16 or torch.bfloat16", .got = dtype_string(in.call.q), .tensor = &in.call.q};
     }},
});

constexpr auto kQShapeRules = std::to_array<DecodeRule>({
    {.id = "B8",
     .slug = "decode-q-rank",
     .argument = "q",
     .message = "q must have shape (N, H, D), got {shape}",
     .fix = "view q as (N, H, D); for one token that is q.unsqueeze(0)",
     .check = [](const In& in) -> Broken {
       if (in.knows(kQRank)) return std::nullopt;
       return wrong_shape("(N, H, D)", in.call.q);
     }},
    {.id = "B8",
     .slug = "decode-heads-positive",
     .argument = "q",
     .needs = kQRank,
     .message = "{call} requires H of at least 1, got {H}",
     .fix = "pass the heads that this rank holds; with none there is nothing to compute",
     .check = [](const In& in) -> Broken {
       if (heads(in.call) >= 1) return std::nullopt;
       return wrong_number("at least 1", heads(in.call));
     }},
    {.id = "B8",
     .slug = "decode-heads-int32",
     .argument = "q",
     .needs = kQRank,
     .message = "{call} requires H below 2**31, got {H}",
     .fix = "check the order of q's dimensions: (N, H, D)",
     .check = [](const In& in) -> Broken {
       if (heads(in.call) <= kInt32Max) return std::nullopt;
       return wrong_number("below 2**31", heads(in.call));
     }},
    {.id = "B8",
     .slug = "decode-width-range",
     .argument = "q",
     .needs = kQRank,
     .message = "{call} requires D from 1 to 2**31-1, got {D}",
     .fix = "check the order of q's dimensions: (N, H, D)",
     .check = [](const In& in) -> Broken {
       if (width(in.call) >= 1 && width(in.call) <= kInt32Max) return std::nullopt;
       return wrong_number("from 1 to 2**31-1", width(in.call));
     }},
    {.id = "D",
     .slug = "decode-width-multiple-of-16",
     .argument = "q",
     .scope = RuleScope::kGeneral,
     .needs = kQRank,
     .message = "{call} requires D to be a multiple of 16, got {D}",
     .fix = "pad q's and unified_kv's rows with zeros, which leaves q.kv as it is",
     .check = [](const In& in) -> Broken {
       if (width(in.call) % 16 == 0) return std::nullopt;
       return wrong_number("a multiple of 16", width(in.call));
     }},
    {.id = "D",
     .slug = "decode-q-device",
     .argument = "q",
     .scope = RuleScope::kGeneral,
     .stage = RuleStage::kDevice,
     .message = "q must be a CPU or CUDA tensor, got {device}",
     .fix = "give q memory on a device that computes: q.cpu() or q.cuda()",
     .check = [](const In& in) -> Broken {
       if (in.knows(kQDevice)) return std::nullopt;
       return Facts{.expected = "cpu or cuda", .got = to_string(in.call.q.device), .tensor = &in.call.q};
     }},
    last_dim_contiguous<Q>("B8"),
});

constexpr auto kSinkRules = std::to_array<DecodeRule>({
    is_a_tensor<AttnSink, None::kRefusedByContract>("B8"),
    {.id = "B8",
     .slug = "decode-attn-sink-shape-dtype",
     .argument = "attn_sink",
     .needs = kQRank,
     .message = "attn_sink must be float32 with shape ({H},), got {shape}/{dtype}",
     .fix = "pass a float32 tensor of shape ({H},), -inf where a head has no sink",
     .check = [](const In& in) -> Broken {
       const Tensor* sink = in.call.attn_sink.tensor();
       if (sink == nullptr) return std::nullopt;
       if (sink->dtype == DType::kFloat32 && has_shape(*sink, {heads(in.call)})) return std::nullopt;
       return Facts{.expected = concat({tuple({heads(in.call)}), "/torch.float32"}),
                    .got = shape_and_dtype(*sink),
                    .tensor = sink};
     }},
    is_on_q_device<AttnSink, false>("B8"),
    is_contiguous<AttnSink>("B8"),
});

// What the Python entry point has no argument for, but a C++ caller can set.
constexpr auto kGeneralOnlyRules = std::to_array<DecodeRule>({
    {.id = "B8",
     .slug = "decode-second-pool-in-contract",
     .argument = "second_pool",
     .scope = RuleScope::kContract,
     .message = "{call} takes one pool, got second_pool",
     .fix = "call decode(), which attends to both pools under one softmax",
     .check = [](const In& in) -> Broken {
       if (!in.call.second_pool) return std::nullopt;
       return Facts{.expected = "no second_pool", .got = "second_pool"};
     }},
    {.id = "B8",
     .slug = "decode-lse-in-contract",
     .argument = "lse",
     .scope = RuleScope::kContract,
     .message = "{call} does not write lse",
     .fix = "call decode(), which does",
     .check = [](const In& in) -> Broken {
       if (in.call.lse.is_none()) return std::nullopt;
       return Facts{.expected = "no lse", .got = "lse"};
     }},
    {.id = "B8",
     .slug = "decode-d-v-in-contract",
     .argument = "d_v",
     .scope = RuleScope::kContract,
     .needs = kQRank,
     .message = "{call} writes all D={D} values, got d_v={d_v}",
     .fix = "leave d_v at 0 and slice out, or call decode(), which takes any d_v up to D",
     .check = [](const In& in) -> Broken {
       if (in.knows(kValueWidth)) return std::nullopt;
       return wrong_number(concat({"0 or ", std::to_string(width(in.call))}), in.call.d_v);
     }},
    {.id = "D",
     .slug = "decode-d-v-range",
     .argument = "d_v",
     .scope = RuleScope::kGeneral,
     .needs = kQRank,
     .message = "{call} requires d_v from 1 to D={D}, or 0 for all of them, got {d_v}",
     .fix = "pass the number of leading values of a kv row that are V, at most {D}",
     .check = [](const In& in) -> Broken {
       if (in.knows(kValueWidth)) return std::nullopt;
       return wrong_number(concat({"from 0 to ", std::to_string(width(in.call))}), in.call.d_v);
     }},
});

constexpr std::array<DecodeRule, 1> kOutTypeRule{is_a_tensor<Out, None::kAllowed>("B8")};
constexpr auto kOutRules = output_rules<Out>({"B8", "B8", "B8", "B8"});
constexpr std::array<DecodeRule, 1> kLseTypeRule{is_a_tensor<Lse, None::kAllowed>("D")};
constexpr auto kLseRules = output_rules<Lse>({"D", "D", "D", "D"});

constexpr auto kWholeCallRules = std::to_array<DecodeRule>({
    {.id = "D",
     .slug = "decode-outputs-alias",
     .argument = "out",
     .scope = RuleScope::kGeneral,
     .message = "out and lse must not alias each other",
     .fix = "give {pair} memory of their own, or leave lse out",
     .check = Tensors<DecodeCall, Out, Lse>::first_aliased},
    {.id = "B8",
     .slug = "decode-softmax-scale-finite",
     .argument = "softmax_scale",
     .stage = RuleStage::kValues,
     .message = "softmax_scale must be finite, got {softmax_scale}",
     .fix = "pass the softmax scale of the model, such as D ** -0.5",
     .check = [](const In& in) -> Broken {
       if (is_finite_float32(in.call.softmax_scale)) return std::nullopt;
       return Facts{.expected = "a number that is finite in float32", .got = number_string(in.call.softmax_scale)};
     }},
    no_negative_size<All>("B8"),
    no_negative_stride<All>("B8"),
    no_endless_span<All>("B8"),
    rows_are_aligned<Tensors<DecodeCall, Q, UnifiedKv<FirstPool>, UnifiedKv<SecondPool>>>("B8", kQRank | kKvRank),
    output_is_aligned<Out>("B8"),
    has_outputs<Tensors<DecodeCall, Out>>("B8"),
    has_memory<All>("B8"),
});

// The second pool has the first one's rules; only the general API has a second pool.
constexpr auto kSecondPoolRules =
    scoped(concatenate(pool_dtype_rules<SecondPool>({"D", "D", "D", "D", "D"}), pool_shape_rules<SecondPool>("D"),
                       pool_layout_rules<SecondPool>("D")),
           RuleScope::kGeneral);

constexpr auto kRules = concatenate(
    kQRules, pool_dtype_rules<FirstPool>({"B3", "B4", "B5", "B6", "B7"}), kQShapeRules,
    pool_shape_rules<FirstPool>("B8"), pool_layout_rules<FirstPool>("B8"), kSinkRules, kGeneralOnlyRules,
    kSecondPoolRules, kOutTypeRule, kOutRules, scoped(concatenate(kLseTypeRule, kLseRules), RuleScope::kGeneral),
    pool_value_rules<FirstPool>("B8"), scoped(pool_value_rules<SecondPool>("D"), RuleScope::kGeneral), kWholeCallRules);

}  // namespace

std::span<const Rule<DecodeCall>> Table<DecodeCall>::rules() noexcept { return kRules; }

std::uint32_t Table<DecodeCall>::known(const DecodeCall& call, const CheckOptions& options) noexcept {
  std::uint32_t known = kNothing;
  if (call.q.rank == 3) known |= kQRank;
  if (call.pool.unified_kv.rank == 2) known |= kKvRank;
  if (call.pool.kv_indices.rank == 1) known |= kIndicesRank;
  if (call.second_pool && call.second_pool->unified_kv.rank == 2) known |= kSecondKvRank;
  if (call.second_pool && call.second_pool->kv_indices.rank == 1) known |= kSecondIndicesRank;
  if (call.q.device.is_cuda() || (!options.contract && call.q.device.is_cpu())) known |= kQDevice;
  if (is_half_precision(call.q.dtype)) known |= kQDType;
  const bool all_values = call.d_v == 0 || (call.q.rank == 3 && call.d_v == width(call));
  const bool some_values = !options.contract && call.q.rank == 3 && call.d_v >= 1 && call.d_v <= width(call);
  if (all_values || some_values) known |= kValueWidth;
  return known;
}

std::optional<std::string> Table<DecodeCall>::named_value(const DecodeCall& call, std::string_view name) {
  if (name == "N") return std::to_string(n(call));
  if (name == "N_plus_1") return one_more(n(call));
  if (name == "H") return std::to_string(heads(call));
  if (name == "D") return std::to_string(width(call));
  if (name == "d_v") return std::to_string(call.d_v);
  if (name == "softmax_scale") return number_string(call.softmax_scale);
  if (name == "q_device") return to_string(call.q.device);
  if (name == "q_dtype") return dtype_string(call.q);
  return std::nullopt;
}

}  // namespace sparse_mla::contract
