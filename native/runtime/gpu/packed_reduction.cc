#include "runtime/gpu/packed_reduction.h"

#include <algorithm>

#include "fusion/plan.h"
#include "runtime/batch_path.h"

namespace ringtune {
std::size_t packed_bytes(std::span<const OperationPtr> batch) {
  std::size_t bytes = 0;
  for (const OperationPtr operation : batch) bytes += fused_size(operation->prepared->wire_bytes);
  return bytes;
}

void PackedReduction::run(std::span<const OperationPtr> batch, const PackedTarget& target, const BatchTimes& times,
                          std::optional<Elements> kept) {
  const Request& first = batch.front()->request();
  const DType wire = wire_dtype(first);
  const ReduceOp op = wire_op(first.op);
  std::vector<std::size_t> counts;
  for (const OperationPtr operation : batch) counts.push_back(operation->prepared->count);
  const std::vector<PackedRound> rounds = cut_rounds(counts, size_of(wire), target.bytes);
  if (rounds.empty()) return times.piece(Stage::kCommunicate, target.stream).end();
  RoundTimes timed(times, target.stream);
  for (const PackedRound& round : rounds) {
    if (target.take) target.take();
    timed.pack([&] { pack(batch, target, round); });
    target.reduce(round.bytes / size_of(wire), wire, op);
    timed.unpack(&round == &rounds.back(), [&] { unpack(batch, target, round, kept); });
  }
}

void PackedReduction::pack(std::span<const OperationPtr> batch, const PackedTarget& target, const PackedRound& round) {
  const Request& first = batch.front()->request();
  moves_.clear();
  for (const PackedPart& part : round.parts) {
    const Operation& operation = *batch[part.tensor];
    const CudaAddress from = address_of(operation.input) + part.begin * size_of(first.dtype);
    moves_.push_back({{from, target.buffer + part.at, part.count}, operation.request().prescale});
  }
  packer_.move(moves_, first.dtype, wire_dtype(first), target.stream);
}

void PackedReduction::unpack(std::span<const OperationPtr> batch, const PackedTarget& target, const PackedRound& round,
                             std::optional<Elements> kept) {
  const Request& first = batch.front()->request();
  const DType wire = wire_dtype(first);
  moves_.clear();
  for (const PackedPart& part : round.parts) {
    const Operation& operation = *batch[part.tensor];
    const Elements wanted = kept.value_or(Elements{0, operation.prepared->count});
    const std::size_t begin = std::max(part.begin, wanted.begin);
    const std::size_t end = std::min(part.begin + part.count, wanted.end);
    if (begin >= end) continue;
    const CudaAddress from = target.buffer + part.at + (begin - part.begin) * size_of(wire);
    const CudaAddress to = address_of(operation.output) + (begin - wanted.begin) * size_of(first.dtype);
    moves_.push_back({{from, to, end - begin}, postscale_of(operation.request(), target.ranks)});
  }
  packer_.move(moves_, wire, first.dtype, target.stream);
}

}  // namespace ringtune
