#include "runtime/gpu/fusion.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "runtime/batch_path.h"
#include "runtime/bootstrap.h"
#include "runtime/gpu/lane.h"

namespace ringtune {
namespace {

/// What a member tells the others: why it cannot pack, empty when it can.
struct Card {
  std::array<char, 256> refusal{};
};

bool is_adasum(std::span<const OperationPtr> batch) { return batch.front()->request().op == ReduceOp::kAdasum; }

std::size_t buffer_bytes(std::span<const OperationPtr> batch, int ranks) {
  if (is_adasum(batch)) {  // no round could do a part of it: the factors depend on the whole tensor
    return std::max(std::bit_ceil(adasum_scratch_bytes(*batch.front(), ranks)), DeviceFusion::kLeastBytes);
  }
  return std::clamp(std::bit_ceil(packed_bytes(batch)), DeviceFusion::kLeastBytes, DeviceFusion::kMostBytes);
}

}  // namespace

bool DeviceFusion::prepare(std::span<const OperationPtr> batch, const BatchContext& context, const CudaDevice& device,
                           std::size_t stream) {
  const Request& first = batch.front()->request();
  const bool must = first.data_path == DataPath::kNcclPacked;
  if (first.kind != CollectiveKind::kAllreduce || (batch.size() < 2 && !must)) return false;
  const AgreementKey key{context.process_set, first.place, stream};
  Agreement& agreement = agreed_[key];
  const std::size_t bytes = buffer_bytes(batch, context.communicator.size());
  if (agreement.refusal.empty() && agreement.bytes < bytes) {
    agree(key, agreement, context, reserve({&device, stream}, bytes), bytes);
  }
  if (must && !agreement.refusal.empty()) throw DataPathRefused(agreement.refusal, first.data_path);
  return agreement.refusal.empty();
}

/// Why the buffer cannot have that size; empty when it has.
std::string DeviceFusion::reserve(const Channel& channel, std::size_t bytes) {
  const CudaDevice& device = *channel.first;
  try {
    const CudaDevice::Current current(device);
    Buffer& buffer = buffers_.try_emplace(channel, device, kernels_.on(device)).first->second;
    (void)buffer.memory.reserve(bytes);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// All members come to the same agreement.
void DeviceFusion::agree(const AgreementKey& key, Agreement& agreement, const BatchContext& context,
                         std::string own_refusal, std::size_t bytes) {
  Card card;
  write(card.refusal, own_refusal);
  const std::vector<Card> cards = gather(card, context.communicator);
  agreement.bytes = bytes;
  const std::string refusal = first_complaint(cards, &Card::refusal, context.communicator);
  if (refusal.empty()) return;
  const bool logged = std::any_of(agreed_.begin(), agreed_.end(), [&](const auto& each) {
    return each.first.process_set == key.process_set && !each.second.refusal.empty();
  });
  agreement.refusal = refusal;
  if (logged) return;
  log(LogLevel::kInfo, "batches by NCCL of process set ", key.process_set,
      " are groups of a call for each tensor, they are not packed: ", refusal);
}

/// The buffer of that stream, which is about to be used.
DeviceFusion::Buffer& DeviceFusion::buffer_for(DeviceLane& lane, std::size_t stream) {
  Buffer& buffer = buffers_.at({&lane.device(), stream});
  buffer.stream = lane.transfer_stream(stream).handle();
  return buffer;
}

void DeviceFusion::launch(
    std::span<const OperationPtr> batch, const BatchContext& context, std::size_t stream, const BatchTimes& times,
    const std::function<void(std::byte* data, std::size_t count, DType dtype, ReduceOp op)>& reduce) {
  Buffer& buffer = buffer_for(lane_of(*batch.front()), stream);
  PackedTarget target;
  target.buffer = buffer.memory.address();
  target.ranks = context.communicator.size();
  target.bytes = buffer_bytes(batch, target.ranks);
  target.stream = buffer.stream;
  target.reduce = [&](std::size_t count, DType dtype, ReduceOp op) {
    reduce(reinterpret_cast<std::byte*>(target.buffer), count, dtype, op);
  };
  buffer.reduction.run(batch, target, times);
}

void DeviceFusion::launch_adasum(const Operation& operation, const BatchContext& context, std::size_t stream,
                                 const BatchTimes& times, const AdasumCalls& calls) {
  Buffer& buffer = buffer_for(lane_of(operation), stream);
  const AdasumPlace place{buffer.reduction.packer(), buffer.memory.address(), buffer.stream,
                          context.communicator.rank(), context.communicator.size()};
  put_adasum(operation, place, calls, times);
}

void DeviceFusion::removed(std::uint32_t process_set) {
  std::erase_if(agreed_, [&](const auto& each) { return each.first.process_set == process_set; });
}

void DeviceFusion::close() noexcept {
  agreed_.clear();
  while (!buffers_.empty()) {
    const auto& [channel, buffer] = *buffers_.begin();
    std::optional<CudaDevice::Current> current;
    try {
      current.emplace(*channel.first);
      if (buffer.stream != nullptr) {
        CudaEvent end(*channel.first);  // behind the unpacking, which follows NCCL's work
        end.record(buffer.stream);
        end.synchronize();
      }
    } catch (const std::exception&) {  // the driver has failed; the results of the calls below are ignored
    }
    buffers_.erase(buffers_.begin());
  }
}

}  // namespace ringtune
