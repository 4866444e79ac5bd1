// Names and their numbers. Internal to trace/.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ringtune {

/// Thread-safe. Numbers count up from 0, which is the empty name; names are never removed, so views stay valid for the
/// life of the table.
class NameTable {
 public:
  NameTable() { (void)intern(""); }

  [[nodiscard]] std::uint32_t intern(std::string_view name) {
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = ids_.find(name); found != ids_.end()) return found->second;
    }
    const std::unique_lock lock(mutex_);
    if (const auto found = ids_.find(name); found != ids_.end()) return found->second;  // somebody was quicker
    const auto id = static_cast<std::uint32_t>(names_.size());
    names_.emplace_back(name);  // a deque: strings that are there do not move
    ids_.emplace(names_.back(), id);
    return id;
  }

  /// Empty for a number that was never given out.
  [[nodiscard]] std::string_view name_of(std::uint32_t id) const {
    const std::shared_lock lock(mutex_);
    return id < names_.size() ? std::string_view(names_[id]) : std::string_view{};
  }

 private:
  mutable std::shared_mutex mutex_;
  std::deque<std::string> names_;
  std::unordered_map<std::string_view, std::uint32_t> ids_;  // keys are views of names_
};

}  // namespace ringtune
