// Runs one fused batch: copy in, the collective, copy out. Used by the cycle thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collective/communicator.h"
#include "collective/shared_allreduce.h"
#include "fusion/knobs.h"
#include "runtime/fusion_buffer.h"
#include "runtime/operation.h"
#include "runtime/statistics.h"
#include "trace/tracer.h"

namespace ringtune {

/// Everything a batch needs to know besides its tensors.
struct BatchContext {
  Communicator& communicator;
  std::uint32_t batch_id = 0;
  std::uint32_t epoch = 0;
  std::uint32_t step = 0;
  std::vector<std::int64_t> rows;  // allgather: first dimension by position in the set
};

/// Borrows the counters and the tracer. Throws what the collectives throw (PeerLost, Timeout).
class Executor {
 public:
  Executor(Counters& counters, Tracer& tracer) : counters_(counters), tracer_(tracer) {}

  void set_knobs(const Knobs& knobs) noexcept { knobs_ = knobs; }
  /// All operations of the batch are of one kind; several only for allreduce. Results are complete on return.
  void execute(std::span<const OperationPtr> batch, const BatchContext& context);

  // A batch of a plan: posted, then asked until all ranks have agreed or one declined, then finished. The communicator
  // has an arena.
  void post_round(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token);
  /// No answer at the deadline. Blocks until then.
  [[nodiscard]] std::optional<bool> round_agreed(Deadline deadline) { return round_->agreed(deadline); }
  /// Agreed on at `agreed_ns`. When it was done.
  std::int64_t finish_round(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t agreed_ns);

 private:
  void record_start(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns);
  // execute_reduce.cc
  void allreduce(std::span<const OperationPtr> batch, const BatchContext& context);
  void allreduce_shared(std::span<const OperationPtr> batch, const BatchContext& context, Arena& arena);
  void gather_fragments(std::span<const OperationPtr> batch, int size);
  void allreduce_one(std::span<const OperationPtr> batch, const BatchContext& context);
  void allreduce_fused(std::span<const OperationPtr> batch, const BatchContext& context);
  void reduce(std::span<std::byte> data, std::span<const OperationPtr> batch, const BatchContext& context);
  // execute_others.cc
  void allgather(std::span<const OperationPtr> batch, const BatchContext& context);
  void broadcast(std::span<const OperationPtr> batch, const BatchContext& context);
  void barrier(std::span<const OperationPtr> batch, const BatchContext& context);
  // execute_exchanges.cc
  void adasum(std::span<const OperationPtr> batch, const BatchContext& context);
  void alltoall(std::span<const OperationPtr> batch, const BatchContext& context);
  void reducescatter(std::span<const OperationPtr> batch, const BatchContext& context);
  void record(Stage stage, const Operation& operation, const BatchContext& context, std::int64_t begin_ns);
  std::int64_t record_batch(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns,
                            std::size_t bytes, Algorithm algorithm = Algorithm::kTable);

  Counters& counters_;
  Tracer& tracer_;
  Knobs knobs_;
  FusionBuffer buffer_;
  std::vector<std::size_t> offsets_;
  std::vector<Fragment> fragments_;
  std::optional<SharedAllreduce> round_;
};

/// Bytes of one row: of everything under one index of the first dimension.
[[nodiscard]] std::size_t row_bytes_of(const Request& request) noexcept;

/// The factor after the reduction over so many ranks: Average is the sum times 1 / size, as in Horovod.
[[nodiscard]] double postscale_of(const Request& request, int size) noexcept;

}  // namespace ringtune
