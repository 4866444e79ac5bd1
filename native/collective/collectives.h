// The algorithms: stateless functions over a Group. Blocking; every rank of the group calls with matching arguments.
// All throw PeerLost, Timeout. No allocation beyond a small scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "collective/activity.h"
#include "collective/agreement_header.h"
#include "collective/algorithm.h"
#include "collective/group.h"
#include "collective/pack_pipeline.h"

namespace ringtune {

struct RingOptions {
  std::size_t segment_bytes = 128 << 10;  // pipelining unit; rounded to a multiple of 64
};

/// In place. `op` is kSum, kMin, kMax or kProduct (Average is Sum and a scale at copy-out; kAverage/kAdasum are refused
/// with InvariantError). Every chunk is reduced in ring order by one rank and passed on: results are bitwise equal on
/// all ranks. float16/bfloat16 accumulate in float32 per step and round to nearest even. kBool: kSum/kMax = or,
/// kProduct/kMin = and.
void ring_allreduce(const Group& group, std::span<std::byte> data, DType dtype, ReduceOp op,
                    const RingOptions& options);

struct AllreduceOptions {
  Algorithm algorithm = Algorithm::kRing;  // not kTable
  RingOptions ring = {};
};

/// What is reduced, in place.
struct AllreduceJob {
  std::span<std::byte> data;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  AllreduceOptions options = {};
  AgreementHeader* agreement = nullptr;  // travels with it: when it is done every rank knows all votes; borrowed
  PackPipeline* pipeline = nullptr;  // brings the data and takes results as they come; borrowed. Null: data is there
};
/// The same, to be advanced, whatever the job's algorithm; the group is larger than 1, the data is not empty. Never
/// blocks.
[[nodiscard]] ActivityPtr start_ring_allreduce(const Group& group, const AllreduceJob& job);

/// `output` holds the blocks of all ranks in order, `block_bytes[r]` each; this rank's block is already in place.
void ring_allgather(const Group& group, std::span<std::byte> output, std::span<const std::size_t> block_bytes,
                    const RingOptions& options);

/// Pipelined chain from `root` (position in the group).
void chain_broadcast(const Group& group, std::span<std::byte> data, int root, const RingOptions& options);

/// Returns when every rank of the group has entered.
void ring_barrier(const Group& group);

}  // namespace ringtune
