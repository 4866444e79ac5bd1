// The process sets of the job as this rank knows them, and its links in those of which it is a member.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "collective/communicator.h"
#include "transport/fabric.h"

namespace ringtune {

/// Borrows the fabric. members() and all() from any thread, the other methods by the driving thread alone.
class ProcessSetTable {
 public:
  using Members = std::shared_ptr<const std::vector<int>>;

  /// Begins with the set of all ranks, number 0. `options`: of every communicator; prefixes are given here.
  ProcessSetTable(Fabric& fabric, CommunicatorOptions options);

  /// Global ranks, ascending; null when there is no such set (any more).
  [[nodiscard]] Members members(std::uint32_t id) const;
  [[nodiscard]] std::map<std::uint32_t, std::vector<int>> all() const;

  /// Every rank adds the same sets in the same order, members or not.
  void add(std::uint32_t id, std::vector<int> members);
  void remove(std::uint32_t id);
  /// Of a set of which this rank is a member (InvariantError otherwise).
  [[nodiscard]] Communicator& communicator(std::uint32_t id);

 private:
  Fabric& fabric_;
  CommunicatorOptions options_;
  std::uint32_t added_ = 0;  // numbers of sets are used again, names of channels never
  std::map<std::uint32_t, std::unique_ptr<Communicator>> communicators_;
  mutable std::mutex mutex_;
  std::map<std::uint32_t, Members> members_;
};

}  // namespace ringtune
