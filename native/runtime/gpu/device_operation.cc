#include "runtime/gpu/device_operation.h"

#include <algorithm>

#include "collective/reducescatter.h"
#include "runtime/gpu/lane.h"
#include "runtime/rows.h"

namespace ringtune {
namespace {

/// Bytes of the result that belong into the submission's output.
std::size_t returned_bytes(const Submission& submission, std::span<const int> members, int rank) {
  const Request& request = submission.request;
  if (request.kind == CollectiveKind::kAllgather || request.kind == CollectiveKind::kAlltoall) return 0;
  const bool keeps = request.kind == CollectiveKind::kBroadcast && request.root == rank;
  if (keeps && submission.input == submission.output) return 0;
  if (request.kind != CollectiveKind::kReducescatter) return byte_count(request);
  const auto own = static_cast<std::size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
  const std::vector<std::int64_t> rows = cut_rows(request.shape.front(), static_cast<int>(members.size()));
  return static_cast<std::size_t>(rows[own]) * row_bytes_of(request);
}

/// Whether the tensor is the result already: nothing needs to be copied then.
bool is_its_own_result(const Submission& submission, std::size_t members) noexcept {
  const Request& request = submission.request;
  const bool reduces = request.kind == CollectiveKind::kAllreduce;
  return members == 1 && reduces && submission.input == submission.output && request.prescale == 1.0 &&
         request.postscale == 1.0 && !request.wire;
}

}  // namespace

StagedShape staged_shape(const Submission& submission, std::span<const int> members, int rank) {
  const Request& request = submission.request;
  const bool stays = is_its_own_result(submission, members.size());
  return {.sends = !stays && (request.kind != CollectiveKind::kBroadcast || request.root == rank),
          .divides = request.kind == CollectiveKind::kAllreduce && request.op != ReduceOp::kAdasum,
          .returned = stays ? 0 : returned_bytes(submission, members, rank)};
}

HostSlice host_slice(std::size_t count, int rank, int size) noexcept {
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t share = count / ranks;
  return {static_cast<std::size_t>(rank) * share, share, ranks * share, count % ranks};
}

DeviceOperation::DeviceOperation(DeviceLane& on) : lane(on), ready(on.device()), copied(on.device()) {}

void DevicePart::finished(Operation& operation) noexcept { whole->lane.part_finished(*this, operation); }

void DeviceOperation::lay_out(std::size_t part_bytes) {
  const std::size_t count = prepared->count;
  const std::size_t item = size_of(prepared->request.dtype);
  const std::size_t most = std::max<std::size_t>(1, part_bytes / item);
  const std::size_t each = shape.divides && !direct() && count > most ? most : count;
  part_count = each == 0 ? 1 : (count + each - 1) / each;
  while (parts.size() < part_count) parts.push_back(std::make_unique<DevicePart>());
  for (std::size_t i = 0; i < part_count; ++i) {
    DevicePart& part = *parts[i];
    part.whole = this;
    part.block = nullptr;
    part.index = i;
    part.begin = i * each * item;
    part.count = std::min(each, count - i * each);
    part.sent = shape.sends ? part.count * item : 0;
    part.returned = shape.returned == 0 ? 0 : part.count * item;
  }
  if (part_count == 1) parts[0]->returned = shape.returned;
}

}  // namespace ringtune
