#include "runtime/stall_report.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "control/rank_set.h"
#include "control/stall.h"

namespace ringtune {
namespace {

constexpr std::size_t kMostGroups = 4;   // of tensors that wait for the same ranks
constexpr std::size_t kMostTensors = 3;  // named of each
constexpr std::size_t kMostRanks = 8;    // of which is said where they stand
constexpr std::size_t kMostFrames = 4;
// What fits into an inquiry.
constexpr std::size_t kMostSent = 24;
constexpr std::size_t kMostTitleBytes = 256;

void write_ranks(ByteWriter& out, const std::vector<int>& ranks) { write_rank_set(out, RankSet::of(ranks)); }
std::vector<int> read_ranks(ByteReader& in) { return read_rank_set(in).ranks(); }

std::uint32_t read_count(ByteReader& in, std::size_t least_bytes) {
  const std::uint32_t count = in.u32();
  if (count > in.remaining() / least_bytes) throw Protocol("a stall report promises more than it holds");
  return count;
}

std::string seconds_text(std::int64_t time_ns) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << static_cast<double>(time_ns) * 1e-9 << " s";
  return text.str();
}

/// Tensors that wait for the same ranks.
using TensorGroups = std::map<std::vector<int>, std::vector<const StalledTensor*>>;

TensorGroups groups_of(const Stall& stall) {
  TensorGroups groups;
  for (const StalledTensor& tensor : stall.tensors) groups[tensor.missing].push_back(&tensor);
  return groups;
}

std::string titles_of(std::span<const StalledTensor* const> tensors) {
  std::string text;
  for (std::size_t i = 0; i < std::min(tensors.size(), kMostTensors); ++i) {
    text += (i > 0 ? ", " : "") + tensors[i]->title;
  }
  return tensors.size() > kMostTensors ? text + " and " + std::to_string(tensors.size() - kMostTensors) + " more"
                                       : text;
}

std::int64_t oldest_of(std::span<const StalledTensor* const> tensors) {
  std::int64_t oldest_ns = 0;
  for (const StalledTensor* tensor : tensors) oldest_ns = std::max(oldest_ns, tensor->age_ns);
  return oldest_ns;
}

std::string late_text(std::span<const StalledTensor* const> tensors, const std::string& ranks) {
  const bool several = tensors.size() > 1;
  return (several ? std::to_string(tensors.size()) + " tensors, " : "tensor ") + titles_of(tensors) +
         (several ? ", were submitted up to " : " was submitted ") + seconds_text(oldest_of(tensors)) +
         " ago and still " + (several ? "wait for " : "waits for ") + ranks;
}

bool is_stopped_rank(int rank, const RankStates& states) {
  return std::any_of(states.begin(), states.end(), [rank](const std::optional<RankState>& state) {
    return state && std::find(state->stopped.begin(), state->stopped.end(), rank) != state->stopped.end();
  });
}

std::string where_text(int rank, const RankStates& states) {
  const auto index = static_cast<std::size_t>(rank);
  if (index >= states.size() || !states[index]) {
    return is_stopped_rank(rank, states)
               ? "its process is stopped (SIGSTOP, a debugger, a suspended job)"
               : "it gives no answer: its process is stopped, or its host or the network hangs";
  }
  const RankState& state = *states[index];
  std::string text = "where it stands in Python is not known";
  if (state.has_stack) {
    const std::string frames = frames_text(state.stack);
    if (!frames.empty()) {
      text = "it stands in " + frames;
    } else if (state.stack.empty()) {
      text = "its main thread takes no signal: it is blocked in the kernel";
    } else {
      text = "its main thread runs no Python";
    }
  }
  if (state.open == 0) return text + "; it has submitted nothing that is not done";
  text += state.waiting ? "; it waits in " : "; it has submitted ";
  if (!state.oldest.empty()) {
    text += state.oldest.front().title + " since " + seconds_text(state.oldest.front().age_ns);
  }
  return state.open > 1 ? text + " and " + std::to_string(state.open - 1) + " more" : text;
}

std::string place_lines(std::span<const int> ranks, const RankStates& states, std::span<const std::string> hosts) {
  if (states.empty()) return ". Is it busy, blocked or gone, or does it run other collectives?";
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostRanks); ++i) {
    text += "\n" + ranks_text(ranks.subspan(i, 1), hosts) + ": " + where_text(ranks[i], states);
  }
  return ranks.size() > kMostRanks ? text + "\nand " + std::to_string(ranks.size() - kMostRanks) + " more ranks" : text;
}

}  // namespace

Stall stall_of(std::span<const StallAction> actions) {
  Stall stall;
  for (const StallAction& action : actions) {
    stall.tensors.push_back({action.title, action.name, action.age_ns, action.missing});
  }
  return stall;
}

Bytes encode(const Stall& stall) {
  ByteWriter out;
  out.u8(stall.entangled ? 1 : 0);
  out.u64(stall.round);
  write_ranks(out, stall.members);
  out.u8(stall.quiet ? 1 : 0);
  const std::size_t count = std::min(stall.tensors.size(), kMostSent);
  out.u32(static_cast<std::uint32_t>(count));
  for (std::size_t i = 0; i < count; ++i) {
    const StalledTensor& tensor = stall.tensors[i];
    out.string(tensor.title.substr(0, kMostTitleBytes));
    out.string(tensor.name.substr(0, kMostTitleBytes));
    out.i64(tensor.age_ns);
    write_ranks(out, tensor.missing);
  }
  return out.take();
}

Stall decode_stall(ByteReader& in) {
  Stall stall;
  stall.entangled = in.u8() != 0;
  stall.round = in.u64();
  stall.members = read_ranks(in);
  stall.quiet = in.u8() != 0;
  stall.tensors.resize(read_count(in, 17));
  for (StalledTensor& tensor : stall.tensors) {
    tensor.title = in.string();
    tensor.name = in.string();
    tensor.age_ns = in.i64();
    tensor.missing = read_ranks(in);
  }
  return stall;
}

Bytes encode(const RankState& state) {
  ByteWriter out;
  out.u8(state.waiting ? 1 : 0);
  out.u64(state.round);
  out.u32(state.open);
  out.u64(state.open_digest);
  out.u32(static_cast<std::uint32_t>(state.oldest.size()));
  for (const OpenTensor& tensor : state.oldest) {
    out.string(tensor.title.substr(0, kMostTitleBytes));
    out.i64(tensor.age_ns);
  }
  out.u8(state.has_stack ? 1 : 0);
  out.string(state.stack);
  write_ranks(out, state.stopped);
  return out.take();
}

RankState decode_rank_state(ByteView bytes) {
  ByteReader in(bytes);
  RankState state;
  state.waiting = in.u8() != 0;
  state.round = in.u64();
  state.open = in.u32();
  state.open_digest = in.u64();
  state.oldest.resize(read_count(in, 12));
  for (OpenTensor& tensor : state.oldest) {
    tensor.title = in.string();
    tensor.age_ns = in.i64();
  }
  state.has_stack = in.u8() != 0;
  state.stack = in.string();
  state.stopped = read_ranks(in);
  in.expect_end();
  return state;
}

// A frame is a line `  File "/home/me/train.py", line 12 in load`.
std::string frames_text(std::string_view stack) {
  constexpr std::string_view kFile = "File \"";
  constexpr std::string_view kLine = "\", line ";
  std::string text;
  for (std::size_t frames = 0, at = 0; frames < kMostFrames; ++frames) {
    const std::size_t file = stack.find(kFile, at);
    if (file == std::string_view::npos) break;
    const std::size_t end = std::min(stack.find('\n', file), stack.size());
    const std::string_view frame = stack.substr(file + kFile.size(), end - file - kFile.size());
    const std::size_t line = frame.rfind(kLine);
    if (line == std::string_view::npos) break;
    text += frames == 0 ? "" : frames == 1 ? ", called by " : ", ";
    text += std::string(frame.substr(0, line)) + ":" + std::string(frame.substr(line + kLine.size()));
    at = end;
  }
  return text;
}

bool all_blocked(const RankStates& states) noexcept {
  return !states.empty() && std::all_of(states.begin(), states.end(), [](const std::optional<RankState>& state) {
    return state.has_value() && state->waiting && state->open > 0;
  });
}

bool nothing_moved(const RankStates& before, const RankStates& after) noexcept {
  return std::equal(before.begin(), before.end(), after.begin(), after.end(), [](const auto& a, const auto& b) {
    return a && b && a->open == b->open && a->open_digest == b->open_digest && a->round == b->round;
  });
}

RankState later_of(const std::optional<RankState>& before, RankState now) {
  if (before && before->waiting && nothing_moved({before}, {now})) now.waiting = true;
  return now;
}

void name_missing(Stall& stall, const RankStates& states) {
  if (stall.round == 0 || states.empty()) return;
  std::vector<int> missing;
  for (const int rank : stall.members) {
    const auto index = static_cast<std::size_t>(rank);
    const bool come = index < states.size() && states[index] && states[index]->round >= stall.round;
    if (!come) missing.push_back(rank);
  }
  for (StalledTensor& tensor : stall.tensors) tensor.missing = missing;
}

std::vector<int> missing_ranks(const Stall& stall) {
  std::set<int> ranks;
  for (const StalledTensor& tensor : stall.tensors) ranks.insert(tensor.missing.begin(), tensor.missing.end());
  return {ranks.begin(), ranks.end()};
}

std::string report_of(const Stall& stall, const RankStates& states, std::span<const std::string> hosts) {
  const TensorGroups groups = groups_of(stall);
  const std::vector<int> missing = missing_ranks(stall);
  std::string text =
      stall.entangled ? "stalled: the ranks wait for different tensors, so none can go on. All ranks must submit the "
                        "same collectives:"
                      : "stalled: ";
  std::size_t number = 0;
  std::size_t unnamed = 0;
  for (const auto& [ranks, tensors] : groups) {
    if (++number > kMostGroups) {
      unnamed += tensors.size();
      continue;
    }
    const std::string named = ranks.empty() ? "bytes of ranks that have all come to it" : ranks_text(ranks, hosts);
    text += (stall.entangled || number > 1 ? "\n" : "") + late_text(tensors, named);
  }
  if (unnamed > 0) text += "\nand " + std::to_string(unnamed) + " more tensors for other ranks";
  return text + place_lines(missing, states, hosts);
}

}  // namespace ringtune
