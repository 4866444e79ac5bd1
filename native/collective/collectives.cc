#include "collective/collectives.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "collective/ring_schedule.h"
#include "collective/stream_transfer.h"

namespace ringtune {
namespace {

void check_group(const Group& group) {
  RINGTUNE_CHECK_GE(group.size, 1);
  RINGTUNE_CHECK(group.rank >= 0 && group.rank < group.size, "rank ", group.rank, " in a group of ", group.size);
}

/// A multiple of 64 bytes (hence of every element), at least 64.
std::size_t segment_of(const RingOptions& options) {
  return std::max<std::size_t>(64, (options.segment_bytes + 63) / 64 * 64);
}

void check_reduction(ReduceOp op) {
  RINGTUNE_CHECK(op != ReduceOp::kAverage && op != ReduceOp::kAdasum, name_of(op), " is composed above the ring");
}

}  // namespace

ActivityPtr start_ring_allreduce(const Group& group, const AllreduceJob& job) {
  check_group(group);
  check_reduction(job.op);
  RINGTUNE_CHECK(group.size > 1 && !job.data.empty(), "nothing to reduce");
  const std::vector<ChunkRange> chunks = cut_chunks(job.data.size(), size_of(job.dtype), group.size);
  StreamTransfer transfer{.what = "ring allreduce",
                          .arrival = {.dtype = job.dtype, .op = job.op},
                          .segment_bytes = segment_of(job.options.ring),
                          .agreement = job.agreement,
                          .packer = job.pipeline,
                          .unpacker = job.pipeline};
  for (const RingStep& step : ring_steps(group.rank, group.size)) {
    transfer.send.push_back(chunks[static_cast<std::size_t>(step.send_chunk)]);
    transfer.recv.push_back(chunks[static_cast<std::size_t>(step.recv_chunk)]);
    if (step.phase == RingPhase::kReduceScatter) ++transfer.arrival.reduced_pieces;
  }
  // Each step sends on what the step before took in, so only the first chunk can go out on its own.
  transfer.ready_bytes = transfer.send.front().size;
  return start_transfer(group, job.data, std::move(transfer));
}

void ring_allreduce(const Group& group, std::span<std::byte> data, DType dtype, ReduceOp op,
                    const RingOptions& options) {
  check_group(group);
  check_reduction(op);
  (void)cut_chunks(data.size(), size_of(dtype), group.size);  // refuses half an element whatever the size
  if (group.size == 1 || data.empty()) return;
  finish(*start_ring_allreduce(group, {.data = data, .dtype = dtype, .op = op, .options = {.ring = options}}),
         *group.waker, group.idle_timeout_ns);
}

void ring_allgather(const Group& group, std::span<std::byte> output, std::span<const std::size_t> block_bytes,
                    const RingOptions& options) {
  check_group(group);
  const auto size = static_cast<std::size_t>(group.size);
  RINGTUNE_CHECK_EQ(block_bytes.size(), size, "one block per rank");
  std::vector<ChunkRange> blocks;
  std::size_t begin = 0;
  for (const std::size_t bytes : block_bytes) {
    blocks.push_back({begin, bytes});
    begin += bytes;
  }
  RINGTUNE_CHECK_EQ(begin, output.size(), "blocks against output");
  if (group.size == 1 || output.empty()) return;
  StreamTransfer transfer{.what = "ring allgather", .segment_bytes = segment_of(options)};
  const auto own = static_cast<std::size_t>(group.rank);
  for (std::size_t k = 0; k + 1 < size; ++k) {
    transfer.send.push_back(blocks[(own + size - k) % size]);
    transfer.recv.push_back(blocks[(own + size - k - 1) % size]);
  }
  transfer.ready_bytes = blocks[own].size;
  run_transfer(group, output, transfer);
}

void chain_broadcast(const Group& group, std::span<std::byte> data, int root, const RingOptions& options) {
  check_group(group);
  RINGTUNE_CHECK(root >= 0 && root < group.size, "root ", root, " in a group of ", group.size);
  if (group.size == 1 || data.empty()) return;
  const int distance = (group.rank - root + group.size) % group.size;
  StreamTransfer transfer{.what = "chain broadcast", .segment_bytes = segment_of(options)};
  const ChunkRange everything{0, data.size()};
  if (distance > 0) transfer.recv.push_back(everything);
  if (distance < group.size - 1) transfer.send.push_back(everything);
  if (distance == 0) transfer.ready_bytes = data.size();
  run_transfer(group, data, transfer);
}

void ring_barrier(const Group& group) {
  // An allgather of one byte each: the byte of a rank that has not entered is missing everywhere. size - 1 hops.
  const auto size = static_cast<std::size_t>(group.size);
  std::vector<std::byte> tokens(size);
  const std::vector<std::size_t> blocks(size, 1);
  ring_allgather(group, tokens, blocks, RingOptions{});
}

}  // namespace ringtune
