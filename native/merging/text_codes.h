// Texts that repeat, as numbers. Internal to merging/.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace ringtune {

/// Owns the texts. One thread.
class TextCodes {
 public:
  TextCodes() : slots_(kFirstSlots) {}

  /// The text's code: 0 for the first one ever asked for, 1 for the next, and so on.
  std::uint32_t of(std::string_view text) {
    const std::uint64_t hash = hash_of(text);
    for (std::size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      Slot& slot = slots_[at];
      if (slot.code == kFree) return add(text, hash, slot);
      if (slot.hash == hash && texts_[slot.code] == text) return slot.code;
    }
  }
  [[nodiscard]] const std::deque<std::string>& texts() const noexcept { return texts_; }

 private:
  static constexpr std::size_t kFirstSlots = 256;  // a power of two
  static constexpr std::uint32_t kFree = 0xffffffff;
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t code = kFree;
  };

  /// Eight bytes at a time; texts are short and differ at their ends.
  static std::uint64_t hash_of(std::string_view text) noexcept {
    constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;
    std::uint64_t hash = text.size() * kFactor;
    while (!text.empty()) {
      std::uint64_t word = 0;
      const std::size_t some = text.size() < sizeof(word) ? text.size() : sizeof(word);
      std::memcpy(&word, text.data(), some);
      hash = (hash ^ word) * kFactor;
      hash ^= hash >> 32;
      text.remove_prefix(some);
    }
    return hash;
  }

  std::uint32_t add(std::string_view text, std::uint64_t hash, Slot& slot) {
    const auto code = static_cast<std::uint32_t>(texts_.size());
    texts_.emplace_back(text);
    slot = {hash, code};
    if (2 * texts_.size() > slots_.size()) grow();
    return code;
  }

  void grow() {
    std::vector<Slot> larger(2 * slots_.size());
    for (const Slot& slot : slots_) {
      if (slot.code == kFree) continue;
      std::size_t at = slot.hash & (larger.size() - 1);
      while (larger[at].code != kFree) at = (at + 1) & (larger.size() - 1);
      larger[at] = slot;
    }
    slots_ = std::move(larger);
  }

  std::vector<Slot> slots_;
  std::deque<std::string> texts_;
};

}  // namespace ringtune
