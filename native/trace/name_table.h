// Names and their numbers. Internal to trace/.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ringtune {

/// Thread-safe. Numbers count up from 0, which is the empty name, and are never given twice. Names that have not been
/// asked for lately get another number when they come again, and are forgotten when nobody can hold the old one: names
/// that count the steps do not pile up.
class NameTable {
 public:
  NameTable() { names_.emplace_back(); }

  static constexpr std::uint32_t kMostNames = 1 << 14;  // until some are no longer known by their number

  [[nodiscard]] std::uint32_t intern(std::string_view name) {
    if (name.empty()) return 0;
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = ids_.find(name); found != ids_.end() && found->second >= oldest()) return found->second;
    }
    const std::unique_lock lock(mutex_);
    if (const auto found = ids_.find(name); found != ids_.end()) {
      if (found->second >= oldest()) return found->second;  // somebody was quicker
      ids_.erase(found);
    }
    const auto id = first_ + static_cast<std::uint32_t>(names_.size());
    names_.emplace_back(name);  // a deque: strings that are there do not move
    ids_.emplace(names_.back(), id);
    // Relaxed: who sees it late keeps a number for that much longer.
    if (id - oldest() >= kMostNames) oldest_.store(id - kMostNames / 2, std::memory_order_relaxed);
    return id;
  }

  /// Smaller numbers, but 0, are not to be used any more; they are known until they are forgotten.
  [[nodiscard]] std::uint32_t oldest() const noexcept { return oldest_.load(std::memory_order_relaxed); }

  /// The names of smaller numbers, which nobody holds. No view of one may be in use.
  void forget(std::uint32_t before) {
    if (before <= first_known()) return;
    const std::unique_lock lock(mutex_);
    for (; first_ < before; ++first_) {
      if (const auto found = ids_.find(names_.front()); found != ids_.end() && found->second == first_) {
        ids_.erase(found);
      }
      names_.pop_front();
    }
  }

  /// Empty for a number that was never given out, or is forgotten.
  [[nodiscard]] std::string_view name_of(std::uint32_t id) const {
    const std::shared_lock lock(mutex_);
    return id >= first_ && id - first_ < names_.size() ? std::string_view(names_[id - first_]) : std::string_view{};
  }

 private:
  [[nodiscard]] std::uint32_t first_known() const {
    const std::shared_lock lock(mutex_);
    return first_;
  }

  mutable std::shared_mutex mutex_;
  std::deque<std::string> names_;  // from the number `first_` on
  std::uint32_t first_ = 0;
  std::atomic<std::uint32_t> oldest_{0};
  std::unordered_map<std::string_view, std::uint32_t> ids_;  // keys are views of names_
};

}  // namespace ringtune
