// The path of ranks that do not share memory: the agreement of a schedule's round travels with the bytes
// (runtime/link_round.h).
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fusion/knobs.h"
#include "runtime/batch_log.h"
#include "runtime/batch_path.h"
#include "runtime/link_collectives.h"
#include "runtime/link_round.h"

namespace ringtune {

/// Borrows the log, the collectives and the knobs.
class LinkPath final : public HostPath {
 public:
  LinkPath(BatchLog& log, LinkCollectives& collectives, const Knobs& knobs) noexcept
      : log_(log), collectives_(collectives), knobs_(knobs) {}

  void run(std::span<const OperationPtr> batch, const BatchContext& context) override;
  void prepare(std::span<const SharedRequest> batch, Communicator& communicator) override;
  void post(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token) override;
  [[nodiscard]] std::optional<bool> agreed(Deadline deadline) override;
  std::int64_t finish(std::span<const OperationPtr> batch, const BatchContext& context,
                      std::int64_t agreed_ns) override;
  std::int64_t take_votes(std::span<const OperationPtr> batch, const BatchContext& context,
                          std::int64_t agreed_ns) override;
  void decline(const DeclineAction& round, Communicator& communicator) override;
  [[nodiscard]] std::vector<int> absent(Communicator& /*communicator*/) const override { return round_->absent(); }

  /// Moves on the rounds that this rank has declined, one of a process set; true when something was moved.
  bool advance_declined();
  [[nodiscard]] bool drained() const noexcept { return declined_.empty(); }
  /// What the posted or a declined round waits for: the message of a Timeout.
  [[nodiscard]] std::string complaint() const {
    return round_ ? round_->complaint() : declined_.front().round.complaint();
  }
  /// When the posted round last moved a byte after all ranks had come; 0 before that.
  [[nodiscard]] std::int64_t moved_ns() const noexcept { return round_ ? round_->moved_ns() : 0; }

 private:
  struct Declined {
    std::unique_ptr<std::byte[]> data;
    LinkRound round;
  };
  void advance();

  BatchLog& log_;
  LinkCollectives& collectives_;
  const Knobs& knobs_;
  std::optional<LinkRound> round_;
  bool staged_ = false;           // its copies are made as it goes
  std::optional<Span> pieces_;    // to be recorded, and as parts of what
  std::int64_t posted_ns_ = 0;    // the round, while recording; 0 = not
  int awaited_ = -1;              // rank that it waited for last
  std::list<Declined> declined_;  // rounds that this rank takes part in all the same
};

}  // namespace ringtune
