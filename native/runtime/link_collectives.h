// Collectives over links, of batches that all ranks have agreed on: copy in, the collective, copy out.
#pragma once

#include <cstddef>
#include <span>

#include "fusion/knobs.h"
#include "runtime/batch_copies.h"
#include "runtime/batch_log.h"
#include "runtime/batch_path.h"
#include "runtime/fusion_buffer.h"

namespace ringtune {

/// Borrows the log and the knobs. The driving thread. Blocks; throws what collectives throw.
class LinkCollectives {
 public:
  LinkCollectives(BatchLog& log, const Knobs& knobs) noexcept : log_(log), knobs_(knobs) {}

  /// When it is recorded that the batch has begun.
  void run(std::span<const OperationPtr> batch, const BatchContext& context);

  // Of an allreduce in the fusion buffer.
  /// Gives the tensors their places in it. Whether they are to be copied as the collective asks for them.
  [[nodiscard]] bool lay_out(std::span<const OperationPtr> batch, const BatchContext& context);
  /// All tensors into it or out of it, one after another.
  void copy_all(Stage stage, const BatchContext& context);
  [[nodiscard]] BatchCopies& copies() noexcept { return copies_; }

 private:
  void allreduce(std::span<const OperationPtr> batch, const BatchContext& context);
  void allreduce_one(std::span<const OperationPtr> batch, const BatchContext& context);
  void allreduce_fused(std::span<const OperationPtr> batch, const BatchContext& context);
  void reduce(std::span<std::byte> data, std::span<const OperationPtr> batch, const BatchContext& context,
              BatchCopies* staged);
  void adasum(std::span<const OperationPtr> batch, const BatchContext& context);
  void reducescatter(std::span<const OperationPtr> batch, const BatchContext& context);
  void allgather(std::span<const OperationPtr> batch, const BatchContext& context);
  void alltoall(std::span<const OperationPtr> batch, const BatchContext& context);
  void broadcast(std::span<const OperationPtr> batch, const BatchContext& context);
  void barrier(std::span<const OperationPtr> batch, const BatchContext& context);

  BatchLog& log_;
  const Knobs& knobs_;
  FusionBuffer buffer_;
  BatchCopies copies_;  // of the batch in the fusion buffer
};

}  // namespace ringtune
