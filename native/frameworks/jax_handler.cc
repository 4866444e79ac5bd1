#include "frameworks/jax_handler.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "frameworks/call_plan.h"
#include "frameworks/port.h"

namespace ringtune::frameworks {
namespace {

struct FailureHook {
  std::mutex mutex;
  std::shared_ptr<const std::function<void()>> call;
};

FailureHook& failure_hook() {
  static FailureHook& only = *new FailureHook;  // outlives the program's threads
  return only;
}

void tell_of_failure() {
  std::shared_ptr<const std::function<void()>> call;
  {
    const std::lock_guard lock(failure_hook().mutex);
    call = failure_hook().call;
  }
  if (call != nullptr) (*call)();
}

xla::ErrorCode code_of(std::string_view error) noexcept {
  if (error == "PeerLost") return xla::ErrorCode::kUnavailable;
  if (error == "Timeout") return xla::ErrorCode::kDeadlineExceeded;
  if (error == "Mismatch" || error == "InvalidArgument") return xla::ErrorCode::kInvalidArgument;
  if (error == "NotInitialized") return xla::ErrorCode::kFailedPrecondition;
  return error == "ShutDown" ? xla::ErrorCode::kAborted : xla::ErrorCode::kInternal;
}

xla::Error* error_of(const xla::CallFrame& frame, const Outcome& outcome) {
  const std::string text = "ringtune." + outcome.error + ": " + outcome.text;
  tell_of_failure();
  xla::ErrorCreateArgs args{sizeof(xla::ErrorCreateArgs), nullptr, text.c_str(), code_of(outcome.error)};
  return frame.api->create_error(&args);
}

DType dtype_of(xla::DataType dtype) {
  switch (dtype) {
    case xla::DataType::kPred:
      return DType::kBool;
    case xla::DataType::kS8:
      return DType::kInt8;
    case xla::DataType::kS16:
      return DType::kInt16;
    case xla::DataType::kS32:
      return DType::kInt32;
    case xla::DataType::kS64:
      return DType::kInt64;
    case xla::DataType::kU8:
      return DType::kUint8;
    case xla::DataType::kU16:
      return DType::kUint16;
    case xla::DataType::kU32:
      return DType::kUint32;
    case xla::DataType::kU64:
      return DType::kUint64;
    case xla::DataType::kF16:
      return DType::kFloat16;
    case xla::DataType::kBF16:
      return DType::kBfloat16;
    case xla::DataType::kF32:
      return DType::kFloat32;
    case xla::DataType::kF64:
      return DType::kFloat64;
    case xla::DataType::kC64:
      return DType::kComplex64;
    case xla::DataType::kC128:
      return DType::kComplex128;
    case xla::DataType::kToken:
      break;
  }
  throw InvalidArgument("a tensor of XLA's type " + std::to_string(static_cast<int>(dtype)) + " does not travel");
}

std::vector<std::int64_t> shape_of(const xla::Buffer& buffer) { return {buffer.dims, buffer.dims + buffer.rank}; }

std::size_t bytes_of(const xla::Buffer& buffer) {
  std::size_t bytes = size_of(dtype_of(buffer.dtype));
  for (std::int64_t i = 0; i < buffer.rank; ++i) bytes *= static_cast<std::size_t>(buffer.dims[i]);
  return bytes;
}

/// Those that hold elements: no tokens.
std::vector<const xla::Buffer*> tensors_of(const xla::Buffers& buffers) {
  std::vector<const xla::Buffer*> found;
  for (std::int64_t i = 0; i < buffers.size; ++i) {
    if (buffers.buffers[i]->dtype != xla::DataType::kToken) found.push_back(buffers.buffers[i]);
  }
  return found;
}

std::string_view call_of(const xla::Attributes& attributes) {
  for (std::int64_t i = 0; i < attributes.size; ++i) {
    const xla::Text& name = *attributes.names[i];
    if (std::string_view(name.data, name.size) != "call" || attributes.types[i] != xla::AttributeType::kString)
      continue;
    const auto& text = *static_cast<const xla::Text*>(attributes.values[i]);
    return {text.data, text.size};
  }
  throw InvalidArgument("the program's custom call does not say what it asks for");
}

struct TextHash {
  using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard library asks for this name
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
};

/// The plan of a text, which is read once. Never forgotten: there are as many as call sites were compiled.
const CallPlan& plan_of(std::string_view text) {
  static std::mutex& mutex = *new std::mutex;
  static auto& plans = *new std::unordered_map<std::string, std::unique_ptr<const CallPlan>, TextHash, std::equal_to<>>;
  const std::lock_guard lock(mutex);
  const auto known = plans.find(text);
  if (known != plans.end()) return *known->second;
  return *plans.emplace(text, std::make_unique<const CallPlan>(parse_call_plan(text))).first->second;
}

bool gathers(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::kAllgather || kind == CollectiveKind::kAlltoall;
}

Calls calls_of(const CallPlan& plan, const std::vector<const xla::Buffer*>& operands,
               const std::vector<const xla::Buffer*>& results) {
  const bool barrier = plan.kind == CollectiveKind::kBarrier;
  if (operands.size() != (barrier ? 0 : plan.names.size()) || results.size() != operands.size()) {
    throw InvalidArgument("a call site has " + std::to_string(operands.size()) + " tensors and " +
                          std::to_string(results.size()) + " results for " + std::to_string(plan.names.size()) +
                          " names");
  }
  Calls calls;
  if (barrier) {
    calls.push_back({request_for(plan, 0, DType::kUint8, {0})});
    return calls;
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const xla::Buffer& operand = *operands[i];
    Submission call{request_for(plan, i, dtype_of(operand.dtype), shape_of(operand)), operand.data, results[i]->data};
    if (gathers(plan.kind)) call.room = bytes_of(*results[i]);
    calls.push_back(std::move(call));
  }
  return calls;
}

/// What is wrong with a gathered result, whose shape the program has fixed.
std::optional<Outcome> misfit(const Outcome& outcome, const xla::Buffer& result, const std::string& name) {
  const std::vector<std::int64_t> expected = shape_of(result);
  if (outcome.shape == expected) return std::nullopt;
  Outcome wrong;
  wrong.error = "InvalidArgument";
  wrong.text = "tensor '" + name + "': compiled code expects a result of shape " + shape_text(expected) +
               ", but the ranks together have one of " + shape_text(outcome.shape) +
               ": inside jit all ranks need equally many rows; call it outside of jit";
  return wrong;
}

xla::Error* execute(const xla::CallFrame& frame) {
  const CallPlan& plan = plan_of(call_of(frame.attributes));
  const std::vector<const xla::Buffer*> results = tensors_of(frame.results);
  const Outcomes outcomes = port().run(calls_of(plan, tensors_of(frame.operands), results));
  for (const Outcome& outcome : outcomes) {
    if (outcome.failed()) return error_of(frame, outcome);
  }
  if (plan.ends_step) port().end_step();
  if (gathers(plan.kind)) {
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      if (const auto wrong = misfit(outcomes[i], *results[i], plan.names[i])) return error_of(frame, *wrong);
    }
  }
  return nullptr;
}

}  // namespace

xla::Error* jax_collective(xla::CallFrame* frame) {
  if (frame->extension != nullptr && frame->extension->type == xla::ExtensionType::kMetadata) {
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(frame->extension)->metadata;
    metadata.api_version.major = xla::kApiMajor;
    metadata.api_version.minor = xla::kApiMinor;
    return nullptr;
  }
  try {
    return execute(*frame);
  } catch (...) {
    return error_of(*frame, outcome_of(std::current_exception()));
  }
}

void on_jax_failure(std::function<void()> call) {
  auto shared = call ? std::make_shared<const std::function<void()>>(std::move(call)) : nullptr;
  const std::lock_guard lock(failure_hook().mutex);
  failure_hook().call.swap(shared);  // the old one goes after the lock
}

}  // namespace ringtune::frameworks
