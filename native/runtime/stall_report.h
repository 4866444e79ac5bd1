// What is known when tensors wait for ranks that do not come, and the report of it. Pure data and text: who asks the
// ranks stands in stall_reporter.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "control/actions.h"

namespace ringtune {

struct StalledTensor {
  std::string title;  // "'grad.3' (allreduce)"
  std::string name;
  std::int64_t age_ns = 0;   // since it was submitted
  std::vector<int> missing;  // ranks that have not come to it
  friend bool operator==(const StalledTensor&, const StalledTensor&) = default;
};

/// Tensors that wait, as one rank sees it.
struct Stall {
  std::vector<StalledTensor> tensors;
  /// The ranks may be waiting for one another, so that none can go on; else some are late.
  bool entangled = false;
  /// The round of a schedule in which they wait (ScheduleFollower::token), of these ranks; 0 = they are negotiated.
  std::uint64_t round = 0;
  std::vector<int> members;
  /// The rank only wants to know who is missing: the job ends.
  bool quiet = false;
  friend bool operator==(const Stall&, const Stall&) = default;
};
/// A stall that a rank has told of, and when it was seen, by now_ns().
struct ReportedStall {
  std::int64_t at_ns = 0;
  Stall stall;
};
/// Of tensors that are negotiated.
[[nodiscard]] Stall stall_of(std::span<const StallAction> actions);
[[nodiscard]] Bytes encode(const Stall& stall);
[[nodiscard]] Stall decode_stall(ByteReader& in);  // throws Protocol

struct OpenTensor {
  std::string title;
  std::int64_t age_ns = 0;
  friend bool operator==(const OpenTensor&, const OpenTensor&) = default;
};

/// What a rank says of itself.
struct RankState {
  bool waiting = false;           // a caller is blocked
  std::uint64_t round = 0;        // the newest round that it has come to
  std::uint32_t open = 0;         // operations that it has submitted and that are not done
  std::uint64_t open_digest = 0;  // of their names
  std::vector<OpenTensor> oldest;
  bool has_stack = false;  // where its main thread stands is known, or that it takes no signal
  std::string stack;
  std::vector<int> stopped;  // other ranks of its host whose processes are stopped
  friend bool operator==(const RankState&, const RankState&) = default;
};
[[nodiscard]] Bytes encode(const RankState& state);
[[nodiscard]] RankState decode_rank_state(ByteView bytes);  // throws Protocol

/// By rank; none of a rank that has not answered.
using RankStates = std::vector<std::optional<RankState>>;

/// The innermost frames of what faulthandler has written, in one line: "train.py:12 in load, called by ...".
[[nodiscard]] std::string frames_text(std::string_view stack);

/// Whether the states prove that no rank can go on by itself: all are there, and blocked in operations.
[[nodiscard]] bool all_blocked(const RankStates& states) noexcept;
/// Whether nobody has got on between the two.
[[nodiscard]] bool nothing_moved(const RankStates& before, const RankStates& after) noexcept;
/// What a rank says now. A caller wakes now and then to look for signals and waits on: who was blocked in the same
/// operations before still is.
[[nodiscard]] RankState later_of(const std::optional<RankState>& before, RankState now);

/// Corrects who is missing in the round of a schedule: a rank sees only those whose messages have reached it.
void name_missing(Stall& stall, const RankStates& states);

/// The ranks that some tensor waits for.
[[nodiscard]] std::vector<int> missing_ranks(const Stall& stall);

/// The report, several lines. `hosts` by rank.
[[nodiscard]] std::string report_of(const Stall& stall, const RankStates& states, std::span<const std::string> hosts);

}  // namespace ringtune
