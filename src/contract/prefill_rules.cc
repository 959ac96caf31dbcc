// The rules of sparse_mla_q8kv8_prefill_fwd and of the general prefill. Their order is the contract's: the first that
// is broken is the one raised. Rules of this library's own (id "D") stand beside the contract's on the same argument,
// or at the end where they are about several.
#include <limits>

#include "contract/families.h"

namespace sparse_mla::contract {
namespace {

using PrefillRule = Rule<PrefillCall>;
using In = Input<PrefillCall>;
using Broken = std::optional<Facts>;

template <Text kText, auto kMember>
struct Arg {
  using Call = PrefillCall;
  static constexpr auto kName = kText;
  static const Tensor* tensor(const PrefillCall& call) { return tensor_of(call.*kMember); }
  static const Argument* argument(const PrefillCall& call) { return argument_of(call.*kMember); }
};

using Q = Arg<"q", &PrefillCall::q>;
using Kv = Arg<"kv", &PrefillCall::kv>;
using Indices = Arg<"indices", &PrefillCall::indices>;
template <Text kText, auto kMember>
struct Scale : Arg<kText, kMember> {
  static bool has_its_shape(const PrefillCall& call) { return (call.*kMember).tensor()->elements() == 1; }
};
using QScale = Scale<"q_scale", &PrefillCall::q_scale>;
using KvScale = Scale<"kv_scale", &PrefillCall::kv_scale>;
using AttnSink = Arg<"attn_sink", &PrefillCall::attn_sink>;
using TopkLength = Arg<"topk_length", &PrefillCall::topk_length>;

// Sizes, where Known says that the rank is right.
std::int64_t s_q(const PrefillCall& call) { return call.q.shape[0]; }
std::int64_t h_q(const PrefillCall& call) { return call.q.shape[1]; }
std::int64_t d_qk(const PrefillCall& call) { return call.q.shape[2]; }
std::int64_t h_kv(const PrefillCall& call) { return call.kv.shape[1]; }
std::int64_t kv_d_qk(const PrefillCall& call) { return call.kv.shape[2]; }
std::int64_t topk(const PrefillCall& call) { return call.indices.shape[2]; }

struct Out : Arg<"out", &PrefillCall::out> {
  static constexpr std::uint32_t kShapeNeeds = kQRank | kValueWidth;
  static constexpr std::uint32_t kDTypeNeeds = kNothing;
  static std::array<std::int64_t, 3> expected_shape(const PrefillCall& call) {
    return {s_q(call), h_q(call), call.d_v};
  }
  static DType expected_dtype(const PrefillCall&) { return DType::kBFloat16; }
};
template <Text kText, auto kMember>
struct PerHead : Arg<kText, kMember> {
  static constexpr std::uint32_t kShapeNeeds = kQRank;
  static constexpr std::uint32_t kDTypeNeeds = kNothing;
  static std::array<std::int64_t, 2> expected_shape(const PrefillCall& call) { return {s_q(call), h_q(call)}; }
  static DType expected_dtype(const PrefillCall&) { return DType::kFloat32; }
};
using MaxLogits = PerHead<"max_logits", &PrefillCall::max_logits>;
using Lse = PerHead<"lse", &PrefillCall::lse>;

using Outputs = Tensors<PrefillCall, Out, MaxLogits, Lse>;
using All = Tensors<PrefillCall, Q, Kv, Indices, QScale, KvScale, AttnSink, TopkLength, Out, MaxLogits, Lse>;

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kHeadBlock = 64;
constexpr std::int64_t kTopkBlock = 128;
constexpr std::int64_t kContractValueWidth = 512;

bool is_positive_multiple(std::int64_t value, std::int64_t of) { return value > 0 && value % of == 0; }
// The next positive multiple, unless there is none in 64 bits.
std::int64_t padded(std::int64_t value, std::int64_t to) {
  if (value > std::numeric_limits<std::int64_t>::max() - to) return value;
  return value <= 0 ? to : (value + to - 1) / to * to;
}

// A21 demands it; A25 reads values only of such a tensor.
bool is_int32_per_query(const Tensor& tensor, const PrefillCall& call) {
  return tensor.dtype == DType::kInt32 && has_shape(tensor, {s_q(call)});
}

// Blocks of the table, in the contract's order.

constexpr auto kInputRules = std::to_array<PrefillRule>({
    {.id = "A1",
     .slug = "prefill-q-rank",
     .argument = "q",
     .message = "q must have shape (s_q, h_q, d_qk), got {shape}",
     .fix = "view q as (s_q, h_q, d_qk); for one query that is q.unsqueeze(0)",
     .check = [](const In& in) -> Broken {
       if (in.knows(kQRank)) return std::nullopt;
       return wrong_shape("(s_q, h_q, d_qk)", in.call.q);
     }},
    {.id = "A2",
     .slug = "prefill-kv-rank",
     .argument = "kv",
     .message = "kv must have shape (s_kv, h_kv, d_qk), got {shape}",
     .fix = "view kv as (s_kv, 1, d_qk): kv.view(-1, 1, kv.shape[-1])",
     .check = [](const In& in) -> Broken {
       if (in.knows(kKvRank)) return std::nullopt;
       return wrong_shape("(s_kv, h_kv, d_qk)", in.call.kv);
     }},
    {.id = "A3",
     .slug = "prefill-indices-rank",
     .argument = "indices",
     .message = "indices must have shape (s_q, h_kv, topk), got {shape}",
     .fix = "view indices as (s_q, 1, topk); from (s_q, topk) that is indices.unsqueeze(1)",
     .check = [](const In& in) -> Broken {
       if (in.knows(kIndicesRank)) return std::nullopt;
       return wrong_shape("(s_q, h_kv, topk)", in.call.indices);
     }},
    is_on_cuda<Q>("A4"),
    is_on_cuda<Kv>("A5"),
    is_on_cuda<Indices>("A6"),
    {.id = "D",
     .slug = "prefill-q-device",
     .argument = "q",
     .scope = RuleScope::kGeneral,
     .stage = RuleStage::kDevice,
     .message = "q must be a CPU or CUDA tensor, got {device}",
     .fix = "give q memory on a device that computes: q.cpu() or q.cuda()",
     .check = [](const In& in) -> Broken {
       if (in.knows(kQDevice)) return std::nullopt;
       return Facts{.expected = "cpu or cuda", .got = to_string(in.call.q.device), .tensor = &in.call.q};
     }},
    is_on_q_device<Kv, true>("A7"),
    is_on_q_device<Indices, true>("A8"),
    is_e4m3fn<Q>("A9", "quantise q: (q.float() / q_scale).to(torch.float8_e4m3fn)"),
    is_e4m3fn<Kv>("A10", "quantise kv: (kv.float() / kv_scale).to(torch.float8_e4m3fn)"),
    is_contiguous<Q>("A11", RuleScope::kContract),
    is_contiguous<Kv>("A12", RuleScope::kContract),
    is_contiguous<Indices>("A13", RuleScope::kContract),
    last_dim_contiguous<Q>("D", RuleScope::kGeneral),
    last_dim_contiguous<Kv>("D", RuleScope::kGeneral),
    last_dim_contiguous<Indices>("D", RuleScope::kGeneral),
});

constexpr auto kSizeRules = std::to_array<PrefillRule>({
    {.id = "A14",
     .slug = "prefill-kv-width",
     .argument = "kv",
     .needs = kQRank | kKvRank,
     .message = "kv d_qk must match q d_qk={d_qk}, got {kv_d_qk}",
     .fix = "pass q and kv of one width: q has {d_qk} values a head, kv {kv_d_qk} a row",
     .check = [](const In& in) -> Broken {
       if (kv_d_qk(in.call) == d_qk(in.call)) return std::nullopt;
       return wrong_number(std::to_string(d_qk(in.call)), kv_d_qk(in.call));
     }},
    {.id = "A15",
     .slug = "prefill-h-q-multiple-of-64",
     .argument = "q",
     .scope = RuleScope::kContract,
     .needs = kQRank,
     .message = "{call} requires h_q padded to a positive multiple of 64, got {h_q}",
     .fix = "pad q to {padded_h_q} heads (sparse_mla.pad_heads) or call prefill(), which takes any head count",
     .check = [](const In& in) -> Broken {
       if (is_positive_multiple(h_q(in.call), kHeadBlock)) return std::nullopt;
       return wrong_number("a positive multiple of 64", h_q(in.call));
     }},
    {.id = "D",
     .slug = "prefill-h-q-positive",
     .argument = "q",
     .scope = RuleScope::kGeneral,
     .needs = kQRank,
     .message = "{call} requires h_q of at least 1, got {h_q}",
     .fix = "pass the heads that this rank holds; with none there is nothing to compute",
     .check = [](const In& in) -> Broken {
       if (h_q(in.call) >= 1) return std::nullopt;
       return wrong_number("at least 1", h_q(in.call));
     }},
    {.id = "D",
     .slug = "prefill-h-q-int32",
     .argument = "q",
     .needs = kQRank,
     .message = "{call} requires h_q below 2**31, got {h_q}",
     .fix = "check the order of q's dimensions: (s_q, h_q, d_qk)",
     .check = [](const In& in) -> Broken {
       if (h_q(in.call) <= kInt32Max) return std::nullopt;
       return wrong_number("below 2**31", h_q(in.call));
     }},
    {.id = "A16",
     .slug = "prefill-h-kv",
     .argument = "kv",
     .needs = kKvRank,
     .message = "{call} requires h_kv=1, got {h_kv}",
     .fix = "pass the one latent head that MLA shares between all query heads: kv of shape (s_kv, 1, d_qk)",
     .check = [](const In& in) -> Broken {
       if (h_kv(in.call) == 1) return std::nullopt;
       return wrong_number("1", h_kv(in.call));
     }},
    {.id = "A17",
     .slug = "prefill-d-qk",
     .argument = "q",
     .scope = RuleScope::kContract,
     .needs = kQRank,
     .message = "{call} supports d_qk=512/576, got {d_qk}",
     .fix = "call prefill(), which takes other widths than d_qk=512/576, or pad q and kv with zeros",
     .check = [](const In& in) -> Broken {
       if (d_qk(in.call) == 512 || d_qk(in.call) == 576) return std::nullopt;
       return wrong_number("512 or 576", d_qk(in.call));
     }},
    {.id = "D",
     .slug = "prefill-d-qk-multiple-of-16",
     .argument = "q",
     .scope = RuleScope::kGeneral,
     .needs = kQRank,
     .message = "{call} requires d_qk to be a positive multiple of 16 below 2**31, got {d_qk}",
     .fix = "pad q and kv to {padded_d_qk} values with zeros, which leaves q.kv as it is",
     .check = [](const In& in) -> Broken {
       if (is_positive_multiple(d_qk(in.call), 16) && d_qk(in.call) <= kInt32Max) return std::nullopt;
       return wrong_number("a positive multiple of 16 below 2**31", d_qk(in.call));
     }},
    {.id = "A18",
     .slug = "prefill-indices-shape",
     .argument = "indices",
     .needs = kQRank | kKvRank | kIndicesRank,
     .message = "indices must have shape ({s_q}, {h_kv}, topk), got {shape}",
     .fix = "pass one list of slots for each of q's {s_q} rows: indices of shape ({s_q}, {h_kv}, topk)",
     .check = [](const In& in) -> Broken {
       const Tensor& indices = in.call.indices;
       if (indices.shape[0] == s_q(in.call) && indices.shape[1] == h_kv(in.call)) return std::nullopt;
       return wrong_shape(concat({"(", std::to_string(s_q(in.call)), ", ", std::to_string(h_kv(in.call)), ", topk)"}),
                          indices);
     }},
    is_int32<Indices>("A19"),
    {.id = "A20",
     .slug = "prefill-topk-multiple-of-128",
     .argument = "indices",
     .scope = RuleScope::kContract,
     .needs = kIndicesRank,
     .message = "Q8KV8 sparse-prefill topk width must be a positive multiple of 128, got {topk}",
     .fix = "pad indices to {padded_topk} slots with -1 (sparse_mla.pad_topk) or call prefill(), which takes any width",
     .check = [](const In& in) -> Broken {
       if (is_positive_multiple(topk(in.call), kTopkBlock)) return std::nullopt;
       return wrong_number("a positive multiple of 128", topk(in.call));
     }},
    {.id = "D",
     .slug = "prefill-topk-positive",
     .argument = "indices",
     .scope = RuleScope::kGeneral,
     .needs = kIndicesRank,
     .message = "{call} requires topk of at least 1, got {topk}",
     .fix = "give every row at least one slot; -1 is \"no token\"",
     .check = [](const In& in) -> Broken {
       if (topk(in.call) >= 1) return std::nullopt;
       return wrong_number("at least 1", topk(in.call));
     }},
});

constexpr auto kOptionalInputRules = std::to_array<PrefillRule>({
    is_a_tensor<TopkLength, None::kAllowed>("D"),
    {.id = "A21",
     .slug = "prefill-topk-length-shape-dtype",
     .argument = "topk_length",
     .needs = kQRank,
     .message = "topk_length must be int32 with shape ({s_q},), got {shape}/{dtype}",
     .fix = "pass an int32 tensor of shape ({s_q},): the number of slots in use of each of q's rows",
     .check = [](const In& in) -> Broken {
       const Tensor* length = in.call.topk_length.tensor();
       if (length == nullptr || is_int32_per_query(*length, in.call)) return std::nullopt;
       return Facts{.expected = concat({tuple({s_q(in.call)}), "/torch.int32"}),
                    .got = shape_and_dtype(*length),
                    .tensor = length};
     }},
    is_on_cuda<TopkLength>("A22"),
    is_on_q_device<TopkLength, true>("A23"),
    is_contiguous<TopkLength>("A24"),
    {.id = "A25",
     .slug = "prefill-topk-length-range",
     .argument = "topk_length",
     .stage = RuleStage::kValues,
     .needs = kQRank | kIndicesRank,
     .message = "topk_length values must satisfy 0 <= topk_length <= topk ({topk})",
     .fix = "clamp it: topk_length.clamp(0, {topk}); topk_length{position} is {value}",
     .check = [](const In& in) -> Broken {
       const Tensor* length = in.call.topk_length.tensor();
       if (length == nullptr || !is_int32_per_query(*length, in.call) || !length->is_contiguous()) return std::nullopt;
       if (!is_within_reach(*length, in) || topk(in.call) < 0) return std::nullopt;
       const auto offender = in.values.first_outside("topk_length", *length, 0, topk(in.call));
       if (!offender) return std::nullopt;
       return offender_facts("topk_length", *length, *offender,
                             concat({"values from 0 to ", std::to_string(topk(in.call))}));
     }},
    {.id = "A26",
     .slug = "prefill-d-v",
     .argument = "d_v",
     .scope = RuleScope::kContract,
     .message = "{call} only supports d_v=512, got {d_v}",
     .fix = "pass d_v=512 and slice out, or call prefill(), which takes any d_v up to d_qk",
     .check = [](const In& in) -> Broken {
       if (in.knows(kValueWidth)) return std::nullopt;
       return wrong_number("512", in.call.d_v);
     }},
    {.id = "D",
     .slug = "prefill-d-v-range",
     .argument = "d_v",
     .scope = RuleScope::kGeneral,
     .needs = kQRank,
     .message = "{call} requires d_v from 1 to d_qk={d_qk}, got {d_v}",
     .fix = "pass the number of leading values of a kv row that are V, at most {d_qk}",
     .check = [](const In& in) -> Broken {
       if (in.knows(kValueWidth)) return std::nullopt;
       return wrong_number(concat({"from 1 to ", std::to_string(d_qk(in.call))}), in.call.d_v);
     }},
    {.id = "A27",
     .slug = "prefill-attn-sink-needs-topk-length",
     .argument = "attn_sink",
     .scope = RuleScope::kContract,
     .message = "attn_sink requires topk_length to be provided as well",
     .fix = "pass topk_length too (sparse_mla.topk_length_from_indices), or call prefill(), which takes a sink alone",
     .check = [](const In& in) -> Broken {
       if (in.call.attn_sink.is_none() || !in.call.topk_length.is_none()) return std::nullopt;
       return Facts{.expected = "topk_length with attn_sink", .got = "topk_length=None"};
     }},
    is_a_tensor<AttnSink, None::kAllowed>("D"),
    {.id = "A28",
     .slug = "prefill-attn-sink-shape-dtype",
     .argument = "attn_sink",
     .needs = kQRank,
     .message = "attn_sink must be float32 with shape ({h_q},), got {shape}/{dtype}",
     .fix = "pass a float32 tensor of shape ({h_q},), -inf where a head has no sink",
     .check = [](const In& in) -> Broken {
       const Tensor* sink = in.call.attn_sink.tensor();
       if (sink == nullptr) return std::nullopt;
       if (sink->dtype == DType::kFloat32 && has_shape(*sink, {h_q(in.call)})) return std::nullopt;
       return Facts{.expected = concat({tuple({h_q(in.call)}), "/torch.float32"}),
                    .got = shape_and_dtype(*sink),
                    .tensor = sink};
     }},
    is_on_cuda<AttnSink>("A29"),
    is_on_q_device<AttnSink, true>("A30"),
    is_contiguous<AttnSink>("A31"),
});

constexpr auto kQScaleRules = scale_rules<QScale>({"A32", "A33", "A34", "A35", "A36", "A37"});
constexpr auto kKvScaleRules = scale_rules<KvScale>({"A32", "A33", "A34", "A35", "A36", "A37"});

constexpr std::array<PrefillRule, 3> kOutputTypeRules{
    is_a_tensor<Out, None::kAllowed>("D"),
    is_a_tensor<MaxLogits, None::kAllowed>("D"),
    is_a_tensor<Lse, None::kAllowed>("D"),
};
constexpr auto kOutRules = output_rules<Out>({"A38", "A39", "A40", "A41"});
constexpr auto kMaxLogitsRules = output_rules<MaxLogits>({"A38", "A39", "A40", "A41"});
constexpr auto kLseRules = output_rules<Lse>({"A38", "A39", "A40", "A41"});

constexpr auto kWholeCallRules = std::to_array<PrefillRule>({
    {.id = "A42",
     .slug = "prefill-outputs-alias",
     .argument = "out",
     .message = "out, max_logits and lse must not alias each other",
     .fix = "give {pair} memory of their own, or pass None to have them made",
     .check = Outputs::first_aliased},
    is_finite<QScale>("D"),
    is_finite<KvScale>("D"),
    {.id = "D",
     .slug = "prefill-sm-scale-finite",
     .argument = "sm_scale",
     .stage = RuleStage::kValues,
     .message = "sm_scale must be finite, got {sm_scale}",
     .fix = "pass the softmax scale of the model, such as d_qk ** -0.5",
     .check = [](const In& in) -> Broken {
       if (is_finite_float32(in.call.sm_scale)) return std::nullopt;
       return Facts{.expected = "a number that is finite in float32", .got = number_string(in.call.sm_scale)};
     }},
    no_negative_size<All>("D"),
    no_negative_stride<All>("D"),
    no_endless_span<All>("D"),
    rows_are_aligned<Tensors<PrefillCall, Q, Kv>>("D", kQRank | kKvRank),
    output_is_aligned<Out>("D"),
    has_outputs<Outputs>("D"),
    has_memory<All>("D"),
});

constexpr auto kRules = concatenate(kInputRules, kSizeRules, kOptionalInputRules, kQScaleRules, kKvScaleRules,
                                    kOutputTypeRules, kOutRules, kMaxLogitsRules, kLseRules, kWholeCallRules);

}  // namespace

std::span<const Rule<PrefillCall>> Table<PrefillCall>::rules() noexcept { return kRules; }

std::uint32_t Table<PrefillCall>::known(const PrefillCall& call, const CheckOptions& options) noexcept {
  std::uint32_t known = kNothing;
  if (call.q.rank == 3) known |= kQRank;
  if (call.kv.rank == 3) known |= kKvRank;
  if (call.indices.rank == 3) known |= kIndicesRank;
  if (call.q.device.is_cuda() || (!options.contract && call.q.device.is_cpu())) known |= kQDevice;
  const bool width_is_served =
      options.contract ? call.d_v == kContractValueWidth : call.q.rank == 3 && call.d_v >= 1 && call.d_v <= d_qk(call);
  if (width_is_served) known |= kValueWidth;
  return known;
}

std::optional<std::string> Table<PrefillCall>::named_value(const PrefillCall& call, std::string_view name) {
  if (name == "s_q") return std::to_string(s_q(call));
  if (name == "h_q") return std::to_string(h_q(call));
  if (name == "d_qk") return std::to_string(d_qk(call));
  if (name == "h_kv") return std::to_string(h_kv(call));
  if (name == "kv_d_qk") return std::to_string(kv_d_qk(call));
  if (name == "topk") return std::to_string(topk(call));
  if (name == "d_v") return std::to_string(call.d_v);
  if (name == "sm_scale") return number_string(call.sm_scale);
  if (name == "q_device") return to_string(call.q.device);
  if (name == "padded_h_q") return std::to_string(padded(h_q(call), kHeadBlock));
  if (name == "padded_d_qk") return std::to_string(padded(d_qk(call), 16));
  if (name == "padded_topk") return std::to_string(padded(topk(call), kTopkBlock));
  return std::nullopt;
}

}  // namespace sparse_mla::contract
