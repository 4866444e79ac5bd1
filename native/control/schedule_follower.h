// A rank that follows a schedule: batches of known tensors that run in a fixed order without a word to the coordinator.
//
// Every batch is one agreed round: its token names the schedule and the position. That is all the agreement there is,
// and it suffices, because
//   - all ranks enter the schedule at the same place of the stream of decisions, at position 0. A rank runs the batches
//   of
//     the process sets of which it is a member, in the schedule's order, and counts the others; one that is in none of
//     them does not enter. What follows holds within each set;
//   - a round is run by all ranks or by none: one rank that declines makes it fail for all, and no output has been
//     written then (in shared memory: transport/shared-memory group.h; over links: collective/agreement header.h,
//     runtime/link_round.h);
//   - a rank leaves only at a round: it declines the next one that it has not posted, or sees that one fail. Whoever
//     declines at position k has run all rounds before k, so all others have posted those; nobody can run k, and so
//     nobody can leave later. Whoever left earlier would have made an earlier round fail. The position of the exit is
//     thus the same on all ranks, whatever the reasons and however many ranks decline;
//   - a rank leaves all sets of the schedule at once: it declines the next round of each of them. Other sets may have
//   come
//     further or less far then, which is no matter: a tensor has run on all members of its set or on none. Nobody waits
//     in a circle: whoever waits in a round waits for ranks that are at an earlier batch of the same order;
//   - a round that is posted comes to its end. In shared memory by the first vote against it, over links when all have
//     voted. A rank that leaves tells the coordinator at once, and over links, or in shared memory when there are
//     several process sets, a rank that waits in a round goes on hearing and passing on messages; so the coordinator's
//     PlanEndDecision reaches those that are idle inside the schedule and have not posted, and they decline;
//   - a rank that has waited long in a round of one set, and has more in hand, asks the coordinator for that end: the
//   rank
//     that it waits for may wait for the rest, by other means than the runtime's and so with nothing to show for it;
//   - what is decided for a rank while it waits in a round has its turn when that is over: it can only follow the vote
//     of a rank that has left at this round, and is about nothing that this rank has reported since.
// What was ready at the exit is reported as usual; the coordinator ignores tensors reported before their rank had
// seen the schedule, since those were taken over into it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "control/request.h"
#include "control/tensor_key.h"

namespace ringtune {

/// What the runtime hangs on a ready tensor; handed back with its batch.
using Tag = std::uintptr_t;

/// A pure machine; one thread drives it.
class ScheduleFollower {
 public:
  /// A tensor that was ready when the schedule ended.
  struct Leftover {
    SharedRequest request;
    Tag tag = 0;
    std::int64_t since_ns = 0;
  };

  [[nodiscard]] bool active() const noexcept { return id_ != 0; }
  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  /// A round in which this rank is going to take part.
  struct Round {
    std::uint64_t token = 0;
    std::vector<SharedRequest> batch;
  };

  /// Enters schedule `id` (not 0) at its first batch. `batches`: empty where this rank is no member; some are not.
  /// `rows`, by batch: of an allgather the first dimensions by member, otherwise empty; none at all when there is no
  /// allgather.
  void begin(std::uint32_t id, const std::vector<std::vector<SharedRequest>>& batches, std::int64_t now_ns,
             std::vector<std::vector<std::int64_t>> rows = {});
  /// A tensor is ready here. False when it is none of the schedule's: then the schedule must be left.
  [[nodiscard]] bool take(const SharedRequest& request, Tag tag, std::int64_t now_ns);

  /// Whether all tensors of the next batch are ready here.
  [[nodiscard]] bool complete() const noexcept { return batches_[position_].missing == 0; }
  /// Whether the next batch is this tensor alone, known by its address, and nothing of the schedule is ready.
  [[nodiscard]] bool expects_alone(const Request& request) const noexcept {
    const Batch& batch = batches_[position_];
    return pending_ == 0 && batch.end - batch.begin == 1 && tensors_[batch.begin].request.get() == &request;
  }
  /// The tags of the next batch, in the schedule's order. Valid until ran() or end().
  [[nodiscard]] std::span<const Tag> batch() const noexcept;
  /// Of the next batch; valid until it ran.
  [[nodiscard]] const std::vector<std::int64_t>& rows() const noexcept { return batches_[position_].rows; }
  [[nodiscard]] std::uint32_t process_set() const noexcept {  // likewise
    return tensors_[batches_[position_].begin].request->process_set;
  }
  /// What all members must believe the next round to be.
  [[nodiscard]] std::uint64_t token() const noexcept { return token_of(pass_, batches_[position_]); }
  /// The next round of every set of the schedule of which this rank is a member.
  [[nodiscard]] std::vector<Round> next_rounds() const;
  /// The next batch has run on all ranks.
  void ran(std::int64_t now_ns) noexcept;

  /// Batches of the schedule that lie behind, those of other ranks' sets among them.
  [[nodiscard]] std::uint64_t rounds() const noexcept { return pass_ * total_ + batches_[position_].number; }
  /// How often all batches have run, under a number that other schedules never have.
  [[nodiscard]] std::uint64_t pass() const noexcept { return std::uint64_t{id_} << 40 | pass_; }
  [[nodiscard]] std::size_t pending() const noexcept { return pending_; }  // tensors that are ready and have not run
  /// When a tensor last became ready or a batch ran.
  [[nodiscard]] std::int64_t progress_ns() const noexcept { return progress_ns_; }
  /// Bytes that the next batch still lacks.
  [[nodiscard]] std::size_t room() const noexcept;
  /// Leaves the schedule. What was ready, in the order in which it became so.
  [[nodiscard]] std::vector<Leftover> end();
  void validate_state() const;

 private:
  struct Batch {
    std::uint32_t begin;
    std::uint32_t end;
    std::uint32_t missing;
    std::uint32_t number;  // in the whole schedule
    std::vector<std::int64_t> rows;
  };
  struct Tensor {
    SharedRequest request;
    std::size_t bytes = 0;
    std::uint32_t batch = 0;
    bool ready = false;
    std::uint64_t order = 0;
    std::int64_t since_ns = 0;
  };
  struct NameHash {
    std::size_t operator()(const std::pair<std::uint32_t, std::string_view>& key) const noexcept {
      return hash_of(key.first, key.second);
    }
  };
  [[nodiscard]] Tensor* find(const SharedRequest& request);
  [[nodiscard]] std::uint64_t token_of(std::uint64_t pass, const Batch& batch) const noexcept {
    return std::uint64_t{id_} << 32 | ((pass * total_ + batch.number) & 0xffffffffu);
  }

  std::uint32_t id_ = 0;
  std::vector<Batch> batches_;
  std::vector<Tensor> tensors_;  // batch by batch
  std::vector<Tag> tags_;        // by tensor
  std::unordered_map<const Request*, std::uint32_t> by_address_;
  // By set and name: views of the tensors' requests.
  std::unordered_map<std::pair<std::uint32_t, std::string_view>, std::uint32_t, NameHash> by_name_;
  std::size_t total_ = 0;  // batches of the whole schedule
  std::size_t position_ = 0;
  std::size_t hint_ = 0;  // the tensor after the last one that came: most come in order
  std::size_t pending_ = 0;
  std::uint64_t pass_ = 0;
  std::uint64_t order_ = 0;
  std::int64_t progress_ns_ = 0;
};

}  // namespace ringtune
