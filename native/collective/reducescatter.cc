#include "collective/reducescatter.h"

#include <algorithm>

#include "base/check.h"
#include "collective/stream_transfer.h"

namespace ringtune {

std::vector<std::int64_t> cut_rows(std::int64_t rows, int parts) {
  RINGTUNE_CHECK_GE(rows, 0);
  RINGTUNE_CHECK_GE(parts, 1);
  std::vector<std::int64_t> cut(static_cast<std::size_t>(parts), rows / parts);
  for (std::int64_t i = 0; i < rows % parts; ++i) ++cut[static_cast<std::size_t>(i)];
  return cut;
}

std::vector<RingStep> scatter_steps(int rank, int size) {
  RINGTUNE_CHECK(rank >= 0 && rank < size, "rank ", rank, " of ", size);
  std::vector<RingStep> steps;
  for (int k = 1; k < size; ++k) {
    steps.push_back({RingPhase::kReduceScatter, (rank - k + size) % size, (rank - k - 1 + 2 * size) % size});
  }
  return steps;
}

void ring_reducescatter(const Group& group, std::span<std::byte> data, std::span<const std::size_t> chunk_bytes,
                        DType dtype, ReduceOp op, const RingOptions& options) {
  RINGTUNE_CHECK(op != ReduceOp::kAverage && op != ReduceOp::kAdasum, name_of(op), " is composed above the ring");
  RINGTUNE_CHECK_EQ(chunk_bytes.size(), static_cast<std::size_t>(group.size), "one chunk for each member");
  std::vector<ChunkRange> chunks;
  std::size_t begin = 0;
  for (const std::size_t bytes : chunk_bytes) {
    RINGTUNE_CHECK_EQ(bytes % size_of(dtype), std::size_t{0}, "a chunk of whole elements");
    chunks.push_back({begin, bytes});
    begin += bytes;
  }
  RINGTUNE_CHECK_EQ(begin, data.size(), "chunks against data");
  if (group.size == 1 || data.empty()) return;
  StreamTransfer transfer{.what = "ring reducescatter", .arrival = {.dtype = dtype, .op = op}};
  for (const RingStep& step : scatter_steps(group.rank, group.size)) {
    transfer.send.push_back(chunks[static_cast<std::size_t>(step.send_chunk)]);
    transfer.recv.push_back(chunks[static_cast<std::size_t>(step.recv_chunk)]);
  }
  transfer.arrival.reduced_pieces = transfer.recv.size();
  transfer.ready_bytes = transfer.send.front().size;
  transfer.segment_bytes = std::max<std::size_t>(64, (options.segment_bytes + 63) / 64 * 64);
  run_transfer(group, data, transfer);
}

}  // namespace ringtune
