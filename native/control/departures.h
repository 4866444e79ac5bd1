// Who has left the job and why, in words for the ranks that still wait for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/rank_set.h"
#include "control/request.h"

namespace ringtune {

/// How a rank left, by its own account.
struct Departure {
  std::int32_t rank = 0;
  std::string who = {};  // "rank 1 on host b"; empty: by its number alone
  std::string how = {};  // what it did, as the words behind that; empty: it has shut down
  bool failed = false;   // by an error, which may have made others leave
  friend bool operator==(const Departure&, const Departure&) = default;
};

/// The departures in the order in which all ranks get to know them. The first error is the cause: those that come after
/// it may be its consequences, whichever rank a tensor waits for.
class Departures {
 public:
  void note(Departure departure);
  /// Why a tensor can never complete which waits for one of these ranks: they have left.
  [[nodiscard]] std::string message(const Request& request, const RankSet& awaited) const;

 private:
  [[nodiscard]] std::string text_of(int rank) const;

  std::vector<Departure> departures_;
  std::optional<Departure> cause_;
};

}  // namespace ringtune
