// Runs one fused batch: copy in, the collective, copy out. Used by the cycle thread only.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collective/communicator.h"
#include "collective/shared_allreduce.h"
#include "collective/shared_exchange.h"
#include "control/actions.h"
#include "fusion/knobs.h"
#include "runtime/batch_copies.h"
#include "runtime/fusion_buffer.h"
#include "runtime/link_round.h"
#include "runtime/operation.h"
#include "runtime/statistics.h"
#include "trace/tracer.h"

namespace ringtune {

/// Everything a batch needs to know besides its tensors.
struct BatchContext {
  Communicator& communicator;
  std::uint32_t batch_id = 0;
  std::uint32_t knobs_version = 0;
  std::uint32_t step = 0;
  std::span<const std::int64_t> rows;  // allgather: first dimension by position in the set; borrowed
  std::uint32_t process_set = 0;
  bool schedule = false;  // agreed on without a message
};

class DevicePaths;

/// Borrows the counters and the tracer. Throws what the collectives throw (PeerLost, Timeout), and DataPathRefused for
/// a batch that was to go from GPU to GPU and has not run.
class Executor {
 public:
  /// `data_paths`: carry what goes from GPU to GPU; null: nothing does.
  Executor(Counters& counters, Tracer& tracer, DevicePaths* data_paths = nullptr)
      : counters_(counters), tracer_(tracer), data_paths_(data_paths) {}

  void set_knobs(const Knobs& knobs) noexcept;
  /// Records the pieces of every batch from now on, or no longer. Any thread.
  void record_pieces(bool on) noexcept { pieces_.store(on, std::memory_order_relaxed); }
  /// All operations of the batch are of one kind; several only for allreduce. Results are complete on return.
  void execute(std::span<const OperationPtr> batch, const BatchContext& context);

  // A batch of a schedule: posted, then asked until all ranks have agreed or one declined, then finished.
  void post_round(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token);
  /// No answer at the deadline. Blocks until then in shared memory; over links never, and the deadline is no matter.
  [[nodiscard]] std::optional<bool> round_agreed(Deadline deadline) {
    return link_round_ ? link_round_agreed() : round_->agreed(deadline);
  }
  /// Agreed on at `agreed_ns`. When it was done.
  std::int64_t finish_round(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t agreed_ns);
  // execute_schedule.cc
  /// Connects what a batch of a schedule needs. Blocks; all ranks of the communicator come by.
  void prepare_batch(std::span<const SharedRequest> batch, Communicator& communicator);
  /// Votes against the next round. Over links this goes on until drained(): meanwhile nothing else is to be executed.
  void decline_round(const DeclineAction& round, Communicator& communicator);
  /// Moves on the rounds that this rank has declined, one of a process set; true when something was moved.
  bool advance_declined();
  [[nodiscard]] bool drained() const noexcept { return declined_.empty(); }
  /// What the posted or a declined round over links waits for: the message of a Timeout.
  [[nodiscard]] std::string complaint() const {
    return link_round_ ? link_round_->complaint() : declined_.front().round.complaint();
  }
  /// The posted round goes over links: its news ring the rank's waker.
  [[nodiscard]] bool round_on_links() const noexcept { return link_round_.has_value(); }
  /// When it last moved a byte after all ranks had come; 0 before that.
  [[nodiscard]] std::int64_t round_moved_ns() const noexcept { return link_round_ ? link_round_->moved_ns() : 0; }
  /// The batches of a schedule run in shared memory.
  [[nodiscard]] bool shares_memory(Communicator& communicator) const { return shm_group_of(communicator) != nullptr; }
  /// That, and another rank has posted the next of them, so that it waits for this one.
  [[nodiscard]] bool awaited(Communicator& communicator) const {
    const ShmGroup* const shm_group = shm_group_of(communicator);
    return shm_group != nullptr && shm_group->awaited();
  }
  /// Global ranks that the posted round waits for.
  [[nodiscard]] std::vector<int> absent_in_round(Communicator& communicator) const;

 private:
  void run(std::span<const OperationPtr> batch, const BatchContext& context);
  void record_start(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns);
  void record_tensors(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns);
  void record_await(const Request& request, const BatchContext& context, std::int64_t end_ns, int rank);
  // A batch's copies, one tensor after another.
  void begin_copies(Stage stage, const Request& first, const BatchContext& context);
  void copied(const Operation& operation) {
    if (recording_copies_) recorder_.copied(trace_name(tracer_, *operation.prepared), operation.prepared->bytes);
  }
  void end_copies();
  // execute_shared.cc
  [[nodiscard]] ShmGroup* shm_group_of(Communicator& communicator) const;
  [[nodiscard]] static bool is_shared(std::span<const OperationPtr> batch) noexcept;
  void post_shared(std::span<const OperationPtr> batch, const BatchContext& context, ShmGroup& shm_group,
                   std::uint64_t token);
  void post_exchange(std::unique_ptr<SharedExchange> exchange) noexcept;
  void gather_fragments(std::span<const OperationPtr> batch, int size);
  [[nodiscard]] static std::vector<std::size_t> blocks_of(const Request& request, const BatchContext& context);
  void run_shared(std::span<const OperationPtr> batch, const BatchContext& context, ShmGroup& shm_group);
  std::int64_t finish_shared(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns);
  [[nodiscard]] std::span<std::byte> output_of(Operation& operation, const BatchContext& context);
  // execute_reduce.cc
  void allreduce(std::span<const OperationPtr> batch, const BatchContext& context);
  void allreduce_across(std::span<const OperationPtr> batch, const BatchContext& context);
  void allreduce_one(std::span<const OperationPtr> batch, const BatchContext& context);
  void allreduce_fused(std::span<const OperationPtr> batch, const BatchContext& context);
  bool lay_out(std::span<const OperationPtr> batch, const BatchContext& context);
  void copy_all(Stage stage, const BatchContext& context);
  void reduce(std::span<std::byte> data, std::span<const OperationPtr> batch, const BatchContext& context,
              BatchCopies* staged);
  void adasum(std::span<const OperationPtr> batch, const BatchContext& context);
  void reducescatter(std::span<const OperationPtr> batch, const BatchContext& context);
  // execute_schedule.cc
  void post_link_round(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token);
  [[nodiscard]] std::optional<bool> link_round_agreed();
  bool advance_link_round();
  std::int64_t finish_link_round(std::span<const OperationPtr> batch, const BatchContext& context);
  // gpu/execute.cc
  void launch(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns);
  // execute_move.cc
  void allgather(std::span<const OperationPtr> batch, const BatchContext& context);
  void alltoall(std::span<const OperationPtr> batch, const BatchContext& context);
  void broadcast(std::span<const OperationPtr> batch, const BatchContext& context);
  void barrier(std::span<const OperationPtr> batch, const BatchContext& context);
  // executor.cc
  void record(Stage stage, const Operation& operation, const BatchContext& context, std::int64_t begin_ns);
  [[nodiscard]] Span batch_span(std::span<const OperationPtr> batch, const BatchContext& context);
  std::int64_t record_batch(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns,
                            std::size_t bytes, Algorithm algorithm = Algorithm::kTable);

  Counters& counters_;
  Tracer& tracer_;
  DevicePaths* data_paths_;
  Knobs knobs_;
  FusionBuffer buffer_;
  BatchCopies copies_;  // of the batch in the fusion buffer
  std::vector<Fragment> fragments_;
  std::unique_ptr<ShmRound> round_;
  SharedExchange* exchange_ = nullptr;  // the round, where it is one
  std::optional<LinkRound> link_round_;
  bool round_staged_ = false;         // its copies are made as it goes
  std::optional<Span> round_pieces_;  // to be recorded, and as parts of what
  struct Declined {
    std::unique_ptr<std::byte[]> data;
    LinkRound round;
  };
  std::list<Declined> declined_;  // rounds that this rank takes part in all the same
  std::int64_t posted_ns_ = 0;    // the round, while recording; 0 = not
  int link_awaited_ = -1;         // rank that the round over links waited for last
  BatchRecorder recorder_{tracer_};
  std::int64_t copies_begin_ns_ = 0;
  bool recording_copies_ = false;
  std::atomic<bool> pieces_{false};
};

/// A span about a batch, or one of its tensors, with everything but its times, bytes and name.
[[nodiscard]] Span span_of(Stage stage, const Request& request, const BatchContext& context) noexcept;

/// How many bytes go to and come from each member, by position.
struct MemberBytes {
  std::vector<std::size_t> sent;
  std::vector<std::size_t> received;
  [[nodiscard]] std::size_t all_received() const noexcept;
};
/// The bytes of an allgather. Sets the shape of the operation's result.
[[nodiscard]] MemberBytes agree_on_allgather(Operation& operation, const BatchContext& context);
/// The bytes of an alltoall. Sets the shape of the operation's result and the rows from each member. Only the senders
/// know how many rows come, so counts are exchanged ahead of the rows; a tensor whose splits change with every call can
/// still be negotiated by its number. Blocks; throws as the collectives.
[[nodiscard]] MemberBytes agree_on_alltoall(Operation& operation, const BatchContext& context);

/// What a link carries for each byte of the result, as nccl-tests count (doc/PERFORMANCE.md there).
[[nodiscard]] double bus_factor(CollectiveKind kind, int size) noexcept;

/// Whether the batch goes from GPU to GPU.
[[nodiscard]] inline bool goes_directly(std::span<const OperationPtr> batch) noexcept {
  return batch.front()->request().data_path != DataPath::kStaged;
}

/// Bytes of so many rows each.
[[nodiscard]] std::vector<std::size_t> bytes_of_rows(std::span<const std::int64_t> rows, std::size_t row_bytes);
/// Of an alltoall: equal shares where it has no splits.
void fill_in_splits(Operation& operation, int size);
/// Of an allgather or alltoall: so many rows come from each member, which gives the shape of the result.
void tell_rows(Operation& operation, std::span<const std::int64_t> rows);

/// Bytes of one row: of everything under one index of the first dimension.
[[nodiscard]] std::size_t row_bytes_of(const Request& request) noexcept;

/// The factor after the reduction over so many ranks: Average is the sum times 1 / size, as in Horovod.
[[nodiscard]] double postscale_of(const Request& request, int size) noexcept;

}  // namespace ringtune
