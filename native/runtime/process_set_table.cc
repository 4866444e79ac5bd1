#include "runtime/process_set_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace ringtune {

ProcessSetTable::ProcessSetTable(Fabric& fabric, CommunicatorOptions options)
    : fabric_(fabric), options_(std::move(options)) {
  add(0, all_ranks(fabric.size()));
}

ProcessSetTable::Members ProcessSetTable::members(std::uint32_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = members_.find(id);
  return found == members_.end() ? nullptr : found->second;
}

std::map<std::uint32_t, std::vector<int>> ProcessSetTable::all() const {
  const std::lock_guard lock(mutex_);
  std::map<std::uint32_t, std::vector<int>> sets;
  for (const auto& [id, members] : members_) sets.emplace(id, *members);
  return sets;
}

void ProcessSetTable::add(std::uint32_t id, std::vector<int> members) {
  CommunicatorOptions options = options_;
  if (added_ > 0) options.prefix = "set" + std::to_string(added_) + ".";
  ++added_;
  if (std::binary_search(members.begin(), members.end(), fabric_.rank())) {
    communicators_[id] = std::make_unique<Communicator>(fabric_, members, std::move(options));
  }
  const std::lock_guard lock(mutex_);
  members_[id] = std::make_shared<const std::vector<int>>(std::move(members));
}

void ProcessSetTable::remove(std::uint32_t id) {
  if (const auto found = communicators_.find(id); found != communicators_.end()) {
    found->second->close();
    communicators_.erase(found);
  }
  const std::lock_guard lock(mutex_);
  members_.erase(id);
}

Communicator& ProcessSetTable::communicator(std::uint32_t id) {
  const auto found = communicators_.find(id);
  RINGTUNE_CHECK(found != communicators_.end(), "this rank is no member of process set ", id);
  return *found->second;
}

}  // namespace ringtune
