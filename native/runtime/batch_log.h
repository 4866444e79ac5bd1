// What batches leave in the timeline and in the counters, whatever path they take.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "collective/algorithm.h"
#include "runtime/batch_path.h"
#include "runtime/statistics.h"
#include "trace/piece_log.h"
#include "trace/tracer.h"

namespace ringtune {

/// Borrows the counters and the tracer. The driving thread but where said.
class BatchLog {
 public:
  BatchLog(Counters& counters, Tracer& tracer) noexcept : counters_(counters), tracer_(tracer) {}

  [[nodiscard]] Tracer& tracer() noexcept { return tracer_; }
  [[nodiscard]] Counters& counters() noexcept { return counters_; }
  /// Records the pieces of every batch from now on, or no longer. Any thread.
  void record_pieces(bool on) noexcept { pieces_.store(on, std::memory_order_relaxed); }
  [[nodiscard]] bool pieces() const noexcept { return pieces_.load(std::memory_order_relaxed) && tracer_.recording(); }

  /// The batch begins: each tensor's negotiation and time in the queue.
  void start(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns);
  /// A wait in a round that was posted at `posted_ns`, for a rank; nothing if that is 0 or the rank is none.
  void awaited(const Request& request, const BatchContext& context, std::int64_t posted_ns, std::int64_t end_ns,
               int rank);
  /// A copy of one tensor that ends now.
  void copied(Stage stage, const Operation& operation, const BatchContext& context, std::int64_t begin_ns);
  // A batch's copies, one tensor after another.
  void begin_copies(Stage stage, const Request& first, const BatchContext& context);
  void copied(const Operation& operation) {
    if (recording_copies_) recorder_.copied(trace_name(tracer_, *operation.prepared), operation.prepared->bytes);
  }
  void end_copies();
  /// About the batch as a whole, without times, bytes and algorithm.
  [[nodiscard]] Span span_of_batch(std::span<const OperationPtr> batch, const BatchContext& context);
  /// So many bytes have travelled from `begin_ns` till now, which is returned.
  std::int64_t communicated(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns,
                            std::size_t bytes, Algorithm algorithm = Algorithm::kTable);

 private:
  void record_tensors(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns);

  Counters& counters_;
  Tracer& tracer_;
  BatchRecorder recorder_{tracer_};
  std::int64_t copies_begin_ns_ = 0;
  bool recording_copies_ = false;
  std::atomic<bool> pieces_{false};  // relaxed: a batch more or less makes no difference
};

/// A span about a batch, or one of its tensors, with everything but its times, bytes and name.
[[nodiscard]] Span span_of(Stage stage, const Request& request, const BatchContext& context) noexcept;

/// While it lives, the calling thread's pieces are recorded as parts of the batch, at full detail.
class BatchPieces {
 public:
  BatchPieces(BatchLog& log, const Request& request, const BatchContext& context) {
    if (log.pieces()) [[unlikely]]
      pieces_.emplace(log.tracer(), span_of(Stage::kPiece, request, context));
  }

 private:
  std::optional<PieceLog> pieces_;
};

/// What a link carries for each byte of the result, as nccl-tests count (doc/PERFORMANCE.md there).
[[nodiscard]] double bus_factor(CollectiveKind kind, int size) noexcept;

}  // namespace ringtune
