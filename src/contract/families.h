// Rules that several arguments share, each generated once per argument with a slug of its own, and the words and
// predicates that both tables use.
//
// An argument is a type with
//   Call              PrefillCall, DecodeCall or KvCall
//   kName             as people write it: "kv_scale", "second_pool.kv_indices"
//   tensor(call)      the tensor, or null for None and for what is not a tensor
//   argument(call)    the Argument it is, or null for a member that is always a tensor
// and, where it is an output, with
//   kShapeNeeds       what must be known before its shape is
//   expected_shape(call), expected_dtype(call)
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>

#include "contract/rule.h"

namespace sparse_mla::contract {

// ---- words ----------------------------------------------------------------------------------------------------------

template <class Call>
constexpr auto slug_prefix() {
  if constexpr (std::same_as<Call, PrefillCall>) {
    return Text("prefill-");
  } else if constexpr (std::same_as<Call, KvCall>) {
    return Text("kv-");
  } else {
    return Text("decode-");
  }
}
template <class A, Text kWhat>
constexpr std::string_view slug = joined<slug_prefix<typename A::Call>(), dashed(A::kName), Text("-"), Text(kWhat)>;
// The argument's name and what follows it.
template <class A, Text kWords>
constexpr std::string_view about = joined<A::kName, kWords>;

std::string concat(std::initializer_list<std::string_view> parts);
std::string tuple(std::span<const std::int64_t> sizes);
inline std::string tuple(std::initializer_list<std::int64_t> sizes) {
  return tuple(std::span<const std::int64_t>(sizes.begin(), sizes.size()));
}
std::string dtype_string(const Tensor& tensor);
std::string strides_string(const Tensor& tensor);
std::string shape_and_dtype(const Tensor& tensor);  // "(2,)/torch.int64"
// As Python subscripts the tensor for its element `position` in row-major order: "[3]", "[3, 2]".
std::string subscript(const Tensor& tensor, std::int64_t position);
// Finite where backends hold it: in float32.
bool is_finite_float32(double value);
// As Python prints it: "900", "nan", "-inf", "0.5".
std::string number_string(double value);
Facts wrong_number(std::string expected, std::int64_t got);
Facts wrong_shape(std::string expected, const Tensor& tensor);
// {position} and {value} of an offender, and "kv_scales[3, 2] = nan" as what was got.
Facts offender_facts(std::string_view name, const Tensor& tensor, const ValueSource::Offender& offender,
                     std::string expected);

// What an argument type's tensor() and argument() give for a member of a call.
inline const Tensor* tensor_of(const Tensor& member) { return &member; }
inline const Tensor* tensor_of(const Argument& member) { return member.tensor(); }
inline const Argument* argument_of(const Tensor&) { return nullptr; }
inline const Argument* argument_of(const Argument& member) { return &member; }

// ---- predicates -----------------------------------------------------------------------------------------------------

bool has_shape(const Tensor& tensor, std::span<const std::int64_t> sizes);
inline bool has_shape(const Tensor& tensor, std::initializer_list<std::int64_t> sizes) {
  return has_shape(tensor, std::span<const std::int64_t>(sizes.begin(), sizes.size()));
}
// The last dimension's elements are neighbours, or there are too few of them to tell.
bool last_dim_is_contiguous(const Tensor& tensor);
bool has_negative_size(const Tensor& tensor);
bool has_negative_stride(const Tensor& tensor);
// Bytes from the first to one past the last; nothing where a size or stride is negative or 2^63 is passed.
std::optional<std::uint64_t> span_bytes(const Tensor& tensor);
// True where two views of one device share a byte.
bool overlap(const Tensor& a, const Tensor& b);
// The first byte, and with it every row's first byte, is a multiple of `bytes`; a view without elements has none.
bool starts_at_multiple(const Tensor& tensor, std::uint64_t bytes);
bool rows_start_at_multiples(const Tensor& tensor, std::uint64_t bytes);

// ---- what stands there ----------------------------------------------------------------------------------------------

enum class None : std::uint8_t { kAllowed, kRefusedByContract };

template <class A, None kNone>
std::optional<Facts> not_a_tensor(const Input<typename A::Call>& in) {
  const Argument* argument = A::argument(in.call);
  if (argument == nullptr || argument->tensor() != nullptr) return std::nullopt;
  if (argument->is_none() && !(kNone == None::kRefusedByContract && in.options.contract)) return std::nullopt;
  std::string got = argument->is_none() ? "None" : argument->not_a_tensor()->what;
  return Facts{.expected = "torch.Tensor", .got = got, .fields = {{"type", got}}};
}

template <class A, None kNone>
constexpr Rule<typename A::Call> is_a_tensor(std::string_view id) {
  return {.id = id,
          .slug = slug<A, "tensor">,
          .argument = A::kName.view(),
          .message = about<A, " must be a torch.Tensor">,
          .fix = joined<Text("pass a torch.Tensor as "), A::kName, Text(", not {type}")>,
          .check = not_a_tensor<A, kNone>};
}

// ---- devices --------------------------------------------------------------------------------------------------------

template <class A>
std::optional<Facts> off_cuda(const Input<typename A::Call>& in) {
  const Tensor* tensor = A::tensor(in.call);
  if (tensor == nullptr || tensor->device.is_cuda()) return std::nullopt;
  return Facts{.expected = "a CUDA device", .got = to_string(tensor->device), .tensor = tensor};
}

template <class A>
constexpr Rule<typename A::Call> is_on_cuda(std::string_view id) {
  return {.id = id,
          .slug = slug<A, "cuda">,
          .argument = A::kName.view(),
          .scope = RuleScope::kContract,
          .stage = RuleStage::kDevice,
          .message = about<A, " must be a CUDA tensor">,
          .fix = joined<Text("move it to the GPU: "), A::kName, Text(".cuda(); prefill() takes CPU tensors")>,
          .check = off_cuda<A>};
}

// kAfterCuda: the contract demands CUDA of this argument in a rule of its own, which has then spoken already.
template <class A, bool kAfterCuda>
std::optional<Facts> off_q_device(const Input<typename A::Call>& in) {
  const Tensor* tensor = A::tensor(in.call);
  if (tensor == nullptr || tensor->device == in.call.q.device) return std::nullopt;
  if (kAfterCuda && in.options.contract && !tensor->device.is_cuda()) return std::nullopt;
  return Facts{.expected = to_string(in.call.q.device), .got = to_string(tensor->device), .tensor = tensor};
}

template <class A, bool kAfterCuda>
constexpr Rule<typename A::Call> is_on_q_device(std::string_view id) {
  return {.id = id,
          .slug = slug<A, "device">,
          .argument = A::kName.view(),
          .stage = RuleStage::kDevice,
          .needs = kQDevice,
          .message = about<A, " must be on q's device {q_device}, got {device}">,
          .fix = joined<Text("move it to q's device: "), A::kName, Text(".to(\"{q_device}\")")>,
          .check = off_q_device<A, kAfterCuda>};
}

// ---- dtypes ---------------------------------------------------------------------------------------------------------

template <class A, DType kDType>
std::optional<Facts> other_dtype(const Input<typename A::Call>& in) {
  const Tensor* tensor = A::tensor(in.call);
  if (tensor == nullptr || tensor->dtype == kDType) return std::nullopt;
  return Facts{.expected = std::string(torch_name(kDType)), .got = dtype_string(*tensor), .tensor = tensor};
}

template <class A>
constexpr Rule<typename A::Call> is_e4m3fn(std::string_view id, std::string_view fix) {
  return {.id = id,
          .slug = slug<A, "dtype">,
          .argument = A::kName.view(),
          .message = about<A, " must be torch.float8_e4m3fn, got {dtype}">,
          .fix = fix,
          .check = other_dtype<A, DType::kFloat8E4M3FN>};
}

template <class A>
constexpr Rule<typename A::Call> is_int32(std::string_view id) {
  return {.id = id,
          .slug = slug<A, "dtype">,
          .argument = A::kName.view(),
          .message = about<A, " must be int32, got {dtype}">,
          .fix = joined<Text("convert it: "), A::kName, Text(".to(torch.int32)")>,
          .check = other_dtype<A, DType::kInt32>};
}

template <class A, Text kWord = "float32">
constexpr Rule<typename A::Call> is_float32(std::string_view id) {
  return {.id = id,
          .slug = slug<A, "dtype">,
          .argument = A::kName.view(),
          .message = joined<A::kName, Text(" must be "), Text(kWord), Text(", got {dtype}")>,
          .fix = joined<Text("convert it: "), A::kName, Text(".float()")>,
          .check = other_dtype<A, DType::kFloat32>};
}

// ---- layout ---------------------------------------------------------------------------------------------------------

template <class A>
std::optional<Facts> not_contiguous(const Input<typename A::Call>& in) {
  const Tensor* tensor = A::tensor(in.call);
  if (tensor == nullptr || tensor->is_contiguous()) return std::nullopt;
  return Facts{.expected = "row-major strides without gaps", .got = strides_string(*tensor), .tensor = tensor};
}

template <class A>
constexpr Rule<typename A::Call> is_contiguous(std::string_view id, RuleScope scope = RuleScope::kBoth) {
  return {.id = id,
          .slug = slug<A, "contiguous">,
          .argument = A::kName.view(),
          .scope = scope,
          .message = about<A, " must be contiguous">,
          .fix = joined<Text("copy it: "), A::kName, Text(".contiguous(); its strides are {strides}")>,
          .check = not_contiguous<A>};
}

template <class A>
std::optional<Facts> last_dim_strided(const Input<typename A::Call>& in) {
  const Tensor* tensor = A::tensor(in.call);
  if (tensor == nullptr || last_dim_is_contiguous(*tensor)) return std::nullopt;
  return Facts{.expected = "a last stride of 1", .got = strides_string(*tensor), .tensor = tensor};
}

template <class A>
constexpr Rule<typename A::Call> last_dim_contiguous(std::string_view id, RuleScope scope = RuleScope::kBoth) {
  return {.id = id,
          .slug = slug<A, "last-dim">,
          .argument = A::kName.view(),
          .scope = scope,
          .message = about<A, " must be contiguous in its last dimension, got strides {strides}">,
          .fix = joined<Text("copy it: "), A::kName, Text(".contiguous()")>,
          .check = last_dim_strided<A>};
}

// ---- scales ---------------------------------------------------------------------------------------------------------

template <class A>
std::optional<Facts> not_one_value(const Input<typename A::Call>& in) {
  const Tensor* tensor = A::tensor(in.call);
  if (tensor == nullptr || A::has_its_shape(in.call)) return std::nullopt;
  return Facts{.expected = "1 element", .got = shape_string(*tensor), .tensor = tensor};
}

template <class A>
constexpr Rule<typename A::Call> is_one_value(std::string_view id) {
  return {.id = id,
          .slug = slug<A, "scalar">,
          .argument = A::kName.view(),
          .message = about<A, " must be a scalar tensor, got shape {shape}">,
          .fix = joined<Text("pass one scale for the whole tensor: "), A::kName, Text(" of shape (1,)")>,
          .check = not_one_value<A>};
}

// A32-37 in their order. The last can only be broken together with the one before it: one element is contiguous.
template <class A>
constexpr std::array<Rule<typename A::Call>, 6> scale_rules(std::array<std::string_view, 6> ids) {
  return {is_a_tensor<A, None::kRefusedByContract>(ids[0]),
          is_on_cuda<A>(ids[1]),
          is_on_q_device<A, true>(ids[2]),
          is_float32<A>(ids[3]),
          is_one_value<A>(ids[4]),
          is_contiguous<A>(ids[5])};
}

// ---- outputs --------------------------------------------------------------------------------------------------------

template <class A>
std::optional<Facts> other_output_shape(const Input<typename A::Call>& in) {
  const Tensor* tensor = A::tensor(in.call);
  if (tensor == nullptr) return std::nullopt;
  const auto sizes = A::expected_shape(in.call);
  if (has_shape(*tensor, sizes)) return std::nullopt;
  std::string expected = tuple(sizes);
  return Facts{
      .expected = expected, .got = shape_string(*tensor), .tensor = tensor, .fields = {{"expected_shape", expected}}};
}

template <class A>
std::optional<Facts> other_output_dtype(const Input<typename A::Call>& in) {
  const Tensor* tensor = A::tensor(in.call);
  if (tensor == nullptr || tensor->dtype == A::expected_dtype(in.call)) return std::nullopt;
  std::string expected(torch_name(A::expected_dtype(in.call)));
  return Facts{
      .expected = expected, .got = dtype_string(*tensor), .tensor = tensor, .fields = {{"expected_dtype", expected}}};
}

// A38-41: shape, dtype, device, contiguous.
template <class A>
constexpr std::array<Rule<typename A::Call>, 4> output_rules(std::array<std::string_view, 4> ids) {
  using OutputRule = Rule<typename A::Call>;
  constexpr std::string_view kEmpty =
      joined<Text("pass "), A::kName, Text("=None to have it made, or torch.empty({expected_shape})")>;
  constexpr std::string_view kEmptyDType =
      joined<Text("pass "), A::kName, Text("=None to have it made, or torch.empty(..., dtype={expected_dtype})")>;
  return {OutputRule{.id = ids[0],
                     .slug = slug<A, "shape">,
                     .argument = A::kName.view(),
                     .needs = A::kShapeNeeds,
                     .message = about<A, " must have shape {expected_shape}, got {shape}">,
                     .fix = kEmpty,
                     .check = other_output_shape<A>},
          OutputRule{.id = ids[1],
                     .slug = slug<A, "dtype">,
                     .argument = A::kName.view(),
                     .needs = A::kDTypeNeeds,
                     .message = about<A, " must have dtype {expected_dtype}, got {dtype}">,
                     .fix = kEmptyDType,
                     .check = other_output_dtype<A>},
          OutputRule{.id = ids[2],
                     .slug = slug<A, "device">,
                     .argument = A::kName.view(),
                     .stage = RuleStage::kDevice,
                     .needs = kQDevice,
                     .message = about<A, " must be on device {q_device}, got {device}">,
                     .fix = joined<Text("pass "), A::kName, Text("=None to have it made, or make it on {q_device}")>,
                     .check = off_q_device<A, false>},
          OutputRule{.id = ids[3],
                     .slug = slug<A, "contiguous">,
                     .argument = A::kName.view(),
                     .message = about<A, " must be contiguous">,
                     .fix = joined<Text("pass "), A::kName,
                                   Text("=None to have it made, or a tensor with no gaps; its "
                                        "strides are {strides}")>,
                     .check = not_contiguous<A>}};
}

// ---- values ---------------------------------------------------------------------------------------------------------

// Whoever reads q's values can read this tensor's: another device has been refused by then.
template <class Call>
bool is_within_reach(const Tensor& tensor, const Input<Call>& in) {
  return !in.options.device_rules || tensor.device == in.call.q.device;
}

// Asked only of float32 of the right shape, with a span that memory can have: other rules have spoken otherwise.
// A provides has_its_shape(call), which its rule on the shape demands.
template <class A>
std::optional<Facts> not_finite(const Input<typename A::Call>& in) {
  const Tensor* tensor = A::tensor(in.call);
  if (tensor == nullptr || tensor->dtype != DType::kFloat32 || span_bytes(*tensor) == std::nullopt) return std::nullopt;
  if (!is_within_reach(*tensor, in) || !A::has_its_shape(in.call)) return std::nullopt;
  const auto offender = in.values.first_not_finite(A::kName.view(), *tensor);
  if (!offender) return std::nullopt;
  return offender_facts(A::kName.view(), *tensor, *offender, "finite values");
}

template <class A>
constexpr Rule<typename A::Call> is_finite(std::string_view id) {
  return {
      .id = id,
      .slug = slug<A, "finite">,
      .argument = A::kName.view(),
      .stage = RuleStage::kValues,
      .message = about<A, " must be finite, got {value} at {position}">,
      .fix = joined<Text("set "), A::kName, Text("{position} to a finite scale; find out what wrote {value} there")>,
      .check = not_finite<A>};
}

// ---- what no kernel survives: one rule each over several tensors of a call, the first at fault is named
// --------------

template <class C, class... As>
struct Tensors {
  using Call = C;

  template <class Test>
  static std::optional<Facts> first(const Input<Call>& in, std::string_view expected, Test is_broken) {
    const std::array<const Tensor*, sizeof...(As)> tensors{As::tensor(in.call)...};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor* tensor = tensors[i];
      if (tensor == nullptr || !is_broken(*tensor)) continue;
      const std::string address = std::to_string(reinterpret_cast<std::uintptr_t>(tensor->data));
      return Facts{.expected = std::string(expected),
                   .got = concat(
                       {"address ", address, ", shape ", shape_string(*tensor), ", strides ", strides_string(*tensor)}),
                   .tensor = tensor,
                   .fields = {{"address", address}},
                   .argument = kNames[i]};
    }
    return std::nullopt;
  }
  static std::optional<Facts> first_none(const Input<Call>& in) {
    const std::array<bool, sizeof...(As)> is_none{As::argument(in.call)->is_none()...};
    for (std::size_t i = 0; i < is_none.size(); ++i) {
      if (is_none[i]) return Facts{.expected = "a tensor", .got = "None", .argument = kNames[i]};
    }
    return std::nullopt;
  }
  // The first pair that shares memory is named.
  static std::optional<Facts> first_aliased(const Input<Call>& in) {
    const std::array<const Tensor*, sizeof...(As)> tensors{As::tensor(in.call)...};
    for (std::size_t a = 0; a < tensors.size(); ++a) {
      for (std::size_t b = a + 1; b < tensors.size(); ++b) {
        if (tensors[a] == nullptr || tensors[b] == nullptr || !overlap(*tensors[a], *tensors[b])) continue;
        std::string pair = concat({kNames[a], " and ", kNames[b]});
        return Facts{.expected = "outputs that share no byte",
                     .got = concat({pair, " overlap"}),
                     .fields = {{"pair", pair}},
                     .argument = kNames[b]};
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr std::array<std::string_view, sizeof...(As)> kNames{As::kName.view()...};
};

template <class Ts>
constexpr Rule<typename Ts::Call> no_negative_size(std::string_view id) {
  return {.id = id,
          .slug = joined<slug_prefix<typename Ts::Call>(), Text("size-negative")>,
          .argument = "q",
          .message = "{name} must have sizes of 0 or more, got {shape}",
          .fix = "describe {name} with the shape that its memory has",
          .check = [](const Input<typename Ts::Call>& in) {
            return Ts::first(in, "sizes of 0 or more", has_negative_size);
          }};
}

template <class Ts>
constexpr Rule<typename Ts::Call> no_negative_stride(std::string_view id) {
  return {.id = id,
          .slug = joined<slug_prefix<typename Ts::Call>(), Text("stride-negative")>,
          .argument = "q",
          .message = "{name} must have strides of 0 or more, got {strides}",
          .fix = "copy {name} into row-major order, as numpy.ascontiguousarray does",
          .check = [](const Input<typename Ts::Call>& in) {
            return Ts::first(in, "strides of 0 or more", has_negative_stride);
          }};
}

template <class Ts>
constexpr Rule<typename Ts::Call> no_endless_span(std::string_view id) {
  return {.id = id,
          .slug = joined<slug_prefix<typename Ts::Call>(), Text("span")>,
          .argument = "q",
          .message = "{name} must span less than 2**63 bytes, got shape {shape} and strides {strides}",
          .fix = "describe {name} with the shape and strides that its memory has",
          .check = [](const Input<typename Ts::Call>& in) {
            return Ts::first(in, "less than 2**63 bytes", [](const Tensor& tensor) {
              return span_bytes(tensor) == std::nullopt && !has_negative_size(tensor) && !has_negative_stride(tensor);
            });
          }};
}

// A CUDA kernel loads q and kv 16 bytes at a time; As are tensors whose last dimension is a row of values, which `needs`
// makes sure of.
template <class Ts>
constexpr Rule<typename Ts::Call> rows_are_aligned(std::string_view id, std::uint32_t needs) {
  return {.id = id,
          .slug = joined<slug_prefix<typename Ts::Call>(), Text("row-alignment")>,
          .argument = "q",
          .stage = RuleStage::kDevice,
          .needs = needs,
          .message =
              "{name} must have rows that start at multiples of 16 bytes, got address {address} and strides "
              "{strides} of {dtype}",
          .fix = "copy {name} into memory of its own: {name}.clone()",
          .check = [](const Input<typename Ts::Call>& in) {
            return Ts::first(in, "rows at multiples of 16 bytes", [](const Tensor& tensor) {
              return tensor.device.is_cuda() && !rows_start_at_multiples(tensor, 16);
            });
          }};
}

template <class Out>
constexpr Rule<typename Out::Call> output_is_aligned(std::string_view id) {
  return {.id = id,
          .slug = slug<Out, "alignment">,
          .argument = Out::kName.view(),
          .stage = RuleStage::kDevice,
          .message = about<Out, " must start at a multiple of 16 bytes, got address {address}">,
          .fix = joined<Text("pass "), Out::kName, Text("=None to have it made, or start it 16-byte aligned")>,
          .check = [](const Input<typename Out::Call>& in) {
            return Tensors<typename Out::Call, Out>::first(
                in, "an address that is a multiple of 16",
                [](const Tensor& tensor) { return tensor.device.is_cuda() && !starts_at_multiple(tensor, 16); });
          }};
}

template <class Ts>
constexpr Rule<typename Ts::Call> has_memory(std::string_view id) {
  return {.id = id,
          .slug = joined<slug_prefix<typename Ts::Call>(), Text("memory")>,
          .argument = "q",
          .stage = RuleStage::kRun,
          .message = "{name} has shape {shape} but no memory",
          .fix = "pass {name} with the address of its first element",
          .check = [](const Input<typename Ts::Call>& in) {
            return Ts::first(in, "an address", [](const Tensor& tensor) {
              return tensor.data == nullptr && span_bytes(tensor) != std::uint64_t{0};
            });
          }};
}

template <class Ts>
constexpr Rule<typename Ts::Call> has_outputs(std::string_view id) {
  return {.id = id,
          .slug = joined<slug_prefix<typename Ts::Call>(), Text("output-missing")>,
          .argument = "out",
          .stage = RuleStage::kRun,
          .message = "{name} must be given, since {call} does not allocate",
          .fix = "pass a tensor that {name} is written to",
          .check = Ts::first_none};
}

}  // namespace sparse_mla::contract
