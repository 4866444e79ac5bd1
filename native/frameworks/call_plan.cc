#include "frameworks/call_plan.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"

namespace ringtune::frameworks {
namespace {

[[noreturn]] void refuse_plan(std::string_view text) {
  throw InvalidArgument("a call site asks for what is no collective: '" + std::string(text.substr(0, 80)) + "'");
}

/// Takes the part up to the separator off the text.
std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view found = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return found;
}

template <typename Number>
Number take_number(std::string_view& line, std::string_view whole) {
  const std::string_view word = take_until(line, ' ');
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) refuse_plan(whole);
  return value;
}

}  // namespace

CallPlan parse_call_plan(std::string_view text) {
  const std::string_view whole = text;
  std::string_view line = take_until(text, '\n');
  CallPlan plan;
  const auto kind = take_number<std::uint8_t>(line, whole);
  if (kind > static_cast<std::uint8_t>(kLastCollectiveKind)) refuse_plan(whole);
  plan.kind = static_cast<CollectiveKind>(kind);
  const auto op = take_number<std::uint8_t>(line, whole);
  if (op > static_cast<std::uint8_t>(ReduceOp::kProduct)) refuse_plan(whole);
  plan.op = static_cast<ReduceOp>(op);
  plan.root = take_number<int>(line, whole);
  plan.process_set = take_number<std::uint32_t>(line, whole);
  plan.wire = take_number<int>(line, whole);
  if (plan.wire < -1 || plan.wire >= kDTypeCount) refuse_plan(whole);
  plan.ends_step = take_number<int>(line, whole) != 0;
  plan.prescale = take_number<double>(line, whole);
  plan.postscale = take_number<double>(line, whole);
  while (!text.empty()) plan.names.emplace_back(take_until(text, '\n'));
  if (!line.empty() || plan.names.empty()) refuse_plan(whole);
  return plan;
}

Request request_for(const CallPlan& plan, std::size_t index, DType dtype, std::vector<std::int64_t> shape) {
  Request request;
  request.name = plan.names.at(index);
  request.kind = plan.kind;
  request.dtype = dtype;
  request.shape = std::move(shape);
  request.process_set = plan.process_set;
  request.root = plan.root;
  const bool reduces = plan.kind == CollectiveKind::kAllreduce || plan.kind == CollectiveKind::kReducescatter;
  if (!reduces) return request;
  request.op = plan.op;
  request.prescale = plan.prescale;
  request.postscale = plan.postscale;
  if (plan.wire >= 0 && is_floating(dtype) && static_cast<DType>(plan.wire) != dtype) {
    request.wire = static_cast<DType>(plan.wire);
  }
  return request;
}

}  // namespace ringtune::frameworks
