#include "transport/store_values.h"

#include <utility>

namespace ringtune {
namespace {

std::size_t cost_of(const std::string& key, std::size_t bytes) { return key.size() + bytes + StoreValues::kEntryBytes; }

std::string too_much(const std::string& key, std::size_t bytes, std::size_t kept, const std::string& limit) {
  return "the value of key '" + key + "' has " + std::to_string(bytes) + " bytes, and it keeps " +
         std::to_string(kept) + " bytes already, of at most " + limit +
         ": it is no place for large data, which belongs in a file that both sides reach";
}

}  // namespace

const Bytes* StoreValues::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second.bytes;
}

std::string StoreValues::refusal(std::uint64_t owner, bool is_launcher, const std::string& key,
                                 std::size_t bytes) const {
  const std::size_t cost = cost_of(key, bytes);
  const auto own = held_.find(owner);
  std::size_t held = own == held_.end() ? 0 : own->second;
  std::size_t all = all_;
  if (const auto found = values_.find(key); found != values_.end()) {  // its memory goes
    const std::size_t before = cost_of(key, found->second.bytes.size());
    all -= before;
    if (found->second.owner == owner) held -= before;
  }
  if (!is_launcher && held + cost > limits_.client_bytes) {
    return too_much(key, bytes, held, std::to_string(limits_.client_bytes) + " of one client");
  }
  if (all + cost > limits_.all_bytes) {
    return too_much(key, bytes, all, std::to_string(limits_.all_bytes) + " of all clients together");
  }
  return "";
}

void StoreValues::put(std::uint64_t owner, const std::string& key, Bytes value) {
  const auto [place, fresh] = values_.try_emplace(key);
  if (!fresh) release(key, place->second);
  const std::size_t cost = cost_of(key, value.size());
  all_ += cost;
  if (owner != kNobody) held_[owner] += cost;
  place->second = {.owner = owner, .bytes = std::move(value)};
}

void StoreValues::release(const std::string& key, const Value& value) {
  const std::size_t cost = cost_of(key, value.bytes.size());
  all_ -= cost;
  if (const auto found = held_.find(value.owner); found != held_.end()) found->second -= cost;
}

}  // namespace ringtune
