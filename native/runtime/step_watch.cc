#include "runtime/step_watch.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "control/tensor_key.h"

namespace ringtune {
namespace {

constexpr std::string_view kUnnamed = "noname.";
// Passes are taken together by its powers, so that ranks agree although times differ.
constexpr std::size_t kFewer = 16;
constexpr std::size_t kMostPerStep = kFewer * kFewer * kFewer;
// The first passes may have been slow - ranks still met, nothing was known of their tensors. So passes are timed once
// more when there were so many, of these the later half, and again and again later.
constexpr std::size_t kFirstPasses = 4 * kFewer;

/// Whether each call may bring another number of rows.
bool rows_may_differ(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::kAllgather || kind == CollectiveKind::kAlltoall;
}

}  // namespace

StepWatch::Token StepWatch::token_of(CollectiveKind kind, std::uint32_t process_set, std::string_view name,
                                     std::size_t elements) noexcept {
  const std::size_t dot = name.find('.');
  Token token = static_cast<Token>(kind) * 0x9e3779b97f4a7c15U;
  if (dot != std::string_view::npos && name.substr(dot + 1).starts_with(kUnnamed)) {
    const std::size_t number = dot + 1 + kUnnamed.size();
    const std::string_view rest = name.substr(std::min(name.find_first_not_of("0123456789", number), name.size()));
    token ^= hash_of(process_set, name.substr(0, number)) + 31 * hash_of(process_set, rest);
    token += rows_may_differ(kind) ? 0 : (elements + 1) * 0xbf58476d1ce4e5b9U;
  } else {
    token ^= hash_of(process_set, name);
  }
  return token == kWait ? 1 : token;
}

bool StepWatch::submitted(Token operation, std::int64_t now_ns) {
  if (!pass_.empty()) return follow(operation, now_ns);
  learn(operation, now_ns);
  return false;
}

void StepWatch::waited() {
  if (pass_.empty()) {
    if (!seen_.empty() && seen_.back().token != kWait) seen_.push_back({kWait, seen_.back().at_ns});
  } else if (pass_[next_] == kWait) {
    if (++next_ == pass_.size()) pass_over();
  }
}

void StepWatch::learn(Token operation, std::int64_t now_ns) {
  if (seen_.size() >= kMostTokens) {
    seen_.erase(seen_.begin(), seen_.begin() + kMostTokens / 2);
    look_at_ = 0;
  }
  seen_.push_back({operation, now_ns});
  const std::size_t count = seen_.size();
  if (count < std::max(look_at_, needed_)) return;
  look_at_ = count + std::max<std::size_t>(count / 8, 4);  // so that each token costs the same few comparisons
  std::size_t begin = 0;
  const std::size_t length = shortest_pass(begin);
  if (length == 0) return;
  while (seen_[begin].token == kWait) ++begin;  // a step begins with an operation
  for (std::size_t i = begin; i < begin + length; ++i) pass_.push_back(seen_[i].token);
  const std::size_t repeats = (count - 1 - begin) / length;
  per_step_ = 1;
  take_together(now_ns - seen_[count - 1 - repeats * length].at_ns, repeats);
  next_ = (count - begin) % length;
  done_ = per_step_;  // what came before ends with the first pass that begins
  lived_ = strays_ = strayed_passes_ = 0;
  strayed_ = false;
  begin_ns_ = now_ns;
  clean_ns_ = strayed_ns_ = 0;
  begun_ = 0;
  time_at_ = kFirstPasses;
  seen_.clear();
}

// How many tokens before the newest ones are the same as these, by how far back they are looked for (the Z function of
// the stream backwards). So many more are periodic.
std::size_t StepWatch::shortest_pass(std::size_t& begin) const {
  const std::size_t count = seen_.size();
  const auto back = [&](std::size_t i) { return seen_[count - 1 - i].token; };
  std::size_t wait = 0;
  while (wait < count && back(wait) != kWait) ++wait;
  std::vector<std::size_t> same(count / kRepeats + 1, 0);
  std::size_t left = 0;
  std::size_t right = 0;
  for (std::size_t away = 1; away < same.size(); ++away) {
    std::size_t& length = same[away];
    if (away < right) length = std::min(right - away, same[away - left]);
    while (away + length < count && back(length) == back(away + length)) ++length;
    if (away + length > right) left = away, right = away + length;
    if (wait < away && away + length >= std::max(kRepeats * away, needed_)) {
      begin = count - (away + length);
      return away;
    }
  }
  return 0;
}

bool StepWatch::follow(Token operation, std::int64_t now_ns) {
  std::size_t at = next_;
  const bool last = at + 1 == pass_.size();
  // Nobody need wait each time.
  if (pass_[at] == kWait && pass_[last ? 0 : at + 1] == operation) {
    at = last ? 0 : at + 1;
    if (last) pass_over();
  }
  if (pass_[at] != operation) {
    if (lost() || pass_[0] != operation) return false;
    at = 0;  // the pass before was cut short: its time goes to the step that it was in
  }
  if (at == 0 && strayed_passes_ >= kRepeats && strayed_ns_ > clean_ns_) {
    forget();
    return false;
  }
  const bool ended = at == 0 && begins_step(now_ns);
  next_ = at + 1;
  if (next_ == pass_.size()) pass_over();
  return ended;
}

/// More passes in a step, if one would be too short by what these took.
void StepWatch::take_together(std::int64_t taken_ns, std::size_t passes) noexcept {
  while (taken_ns * static_cast<std::int64_t>(per_step_) < kLeastStepNs * static_cast<std::int64_t>(passes) &&
         per_step_ < kMostPerStep) {
    per_step_ *= kFewer;
  }
}

/// At places that are the same on all ranks, whatever each has thought of the passes before.
void StepWatch::time_passes(std::int64_t now_ns) noexcept {
  ++begun_;
  if (begun_ == time_at_ / 2) {
    timed_ns_ = now_ns;
  } else if (begun_ == time_at_) {
    const std::size_t before = per_step_;
    take_together(now_ns - timed_ns_, time_at_ / 2);
    if (per_step_ != before) done_ = (begun_ - 1) % per_step_;
    time_at_ *= kFewer;
  }
}

bool StepWatch::begins_step(std::int64_t now_ns) {
  time_passes(now_ns);
  (strayed_ ? strayed_ns_ : clean_ns_) += now_ns - std::exchange(begin_ns_, now_ns);
  strayed_passes_ += std::exchange(strayed_, false) ? 1 : 0;
  if (done_ < per_step_) return false;
  done_ = 0;
  return true;
}

void StepWatch::pass_over() noexcept {
  next_ = 0;
  ++done_;
  lived_ += pass_.size();
  strays_ = 0;
}

/// Whether this was one token too many that was not next.
bool StepWatch::lost() {
  strayed_ = true;
  // A few are an evaluation now and then, or a step that left something out. With more the program does other things;
  // and a pass that has just been found may be the first of many layers alike.
  const bool young = lived_ < 2 * needed_;
  if (++strays_ <= (young ? 0 : 2 * pass_.size() + kFewer)) return false;
  forget();
  return true;
}

void StepWatch::forget() {
  if (lived_ < 2 * needed_ || strayed_ns_ > clean_ns_) needed_ = std::min(2 * needed_, kMostTokens / 2);
  pass_.clear();
  look_at_ = 0;
}

void StepWatcher::begin(std::function<void()> ended) {
  end();
  ended_ = std::move(ended);
  thread_ = std::this_thread::get_id();
  watch_ = StepWatch();
  on_.store(true, std::memory_order_release);
}

void StepWatcher::take(StepWatch::Token operation) {
  if (!watch_.goes_on(operation) && watch_.submitted(operation, now_ns())) ended_();
}

}  // namespace ringtune
