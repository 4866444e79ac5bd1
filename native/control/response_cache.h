// The coordinator's numbers for tensors that the ranks have reported alike: later a number stands for the request.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "control/request.h"
#include "control/tensor_key.h"

namespace ringtune {

class ResponseCache {
 public:
  static constexpr std::uint32_t kNone = 0;

  struct Slot {
    TensorKey key;
    std::vector<Variant> variants;  // what its number means, from each rank that may use it
    RankSet ranks;                  // all of the variants'
    std::vector<std::int64_t> rows;
    std::uint64_t evicted_in = 0;  // sequence of the decisions that evicted it; 0 = live
    bool known = false;            // the ranks know the number
    bool set_removed = false;      // its process set is gone, though some rank may still use the number
    std::list<std::uint32_t>::iterator use;
  };

  /// Live, or evicted while some rank may not know it yet; null otherwise.
  [[nodiscard]] Slot* find(std::uint32_t id) noexcept;
  /// The live number of a tensor, or kNone.
  [[nodiscard]] std::uint32_t id_of(const TensorKey& key) const;
  std::uint32_t add(Slot slot);
  /// The tensor was used: it will be evicted late.
  void touch(Slot& slot) { least_used_.splice(least_used_.end(), least_used_, slot.use); }
  void evict(std::uint32_t id, std::uint64_t sequence);
  /// What to evict to come down to `capacity`, least used first, without those that `keep` wants.
  [[nodiscard]] std::vector<std::uint32_t> surplus(std::size_t capacity,
                                                   const std::function<bool(const TensorKey&)>& keep) const;
  [[nodiscard]] std::vector<std::uint32_t> ids_of_set(std::uint32_t process_set) const;
  /// Forgets what was evicted up to `sequence`, which all ranks have seen.
  void drop_evicted(std::uint64_t sequence);
  [[nodiscard]] bool has_evicted() const noexcept { return !evicted_.empty(); }
  void mark_set_removed(std::uint32_t process_set);
  void validate_state() const;

 private:
  std::unordered_map<std::uint32_t, Slot> slots_;
  std::unordered_map<TensorKey, std::uint32_t, TensorKeyHash> ids_;
  std::list<std::uint32_t> least_used_;  // live numbers, oldest use first
  std::vector<std::uint32_t> evicted_;
  std::uint32_t next_id_ = 1;
};

}  // namespace ringtune
