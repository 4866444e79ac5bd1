// The path of ranks that share memory: copies in and out are part of the collective, and of its span; the agreement is
// the token of the round.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "collective/shared_allreduce.h"
#include "collective/shared_exchange.h"
#include "runtime/batch_log.h"
#include "runtime/batch_path.h"
#include "runtime/link_collectives.h"

namespace ringtune {

/// Borrows the log and the collectives, which carry what slots cannot: for it rounds are votes. The communicators of
/// its batches have a shared-memory group.
class SharedMemoryPath final : public HostPath {
 public:
  SharedMemoryPath(BatchLog& log, LinkCollectives& collectives) noexcept : log_(log), collectives_(collectives) {}

  void run(std::span<const OperationPtr> batch, const BatchContext& context) override;
  void prepare(std::span<const SharedRequest> /*batch*/, Communicator& /*communicator*/) override {}
  void post(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token) override;
  [[nodiscard]] std::optional<bool> agreed(Deadline deadline) override { return round_->agreed(deadline); }
  std::int64_t finish(std::span<const OperationPtr> batch, const BatchContext& context,
                      std::int64_t agreed_ns) override;
  std::int64_t take_votes(std::span<const OperationPtr> batch, const BatchContext& context,
                          std::int64_t agreed_ns) override;
  void decline(const DeclineAction& round, Communicator& communicator) override;
  [[nodiscard]] std::vector<int> absent(Communicator& communicator) const override;

 private:
  void begin_round(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token);
  void begin_exchange(std::unique_ptr<SharedExchange> exchange) noexcept;
  void gather_fragments(std::span<const OperationPtr> batch, int size);
  void note_agreed(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t agreed_ns);
  std::int64_t end_round(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns);
  [[nodiscard]] std::span<std::byte> output_of(Operation& operation, const BatchContext& context);

  BatchLog& log_;
  LinkCollectives& collectives_;
  std::vector<Fragment> fragments_;
  std::unique_ptr<ShmRound> round_;
  SharedExchange* exchange_ = nullptr;  // the round, where it is one
  std::int64_t posted_ns_ = 0;          // the round, while recording; 0 = not
};

}  // namespace ringtune
