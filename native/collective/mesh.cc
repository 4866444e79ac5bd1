#include "collective/mesh.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace ringtune {

Mesh::Mesh(Fabric& fabric, std::vector<int> members, MeshOptions options)
    : fabric_(fabric), members_(std::move(members)), options_(std::move(options)), links_(members_.size(), nullptr) {
  const auto own = std::find(members_.begin(), members_.end(), fabric.rank());
  RINGTUNE_CHECK(own != members_.end(), "rank ", fabric.rank(), " is no member of the group");
  rank_ = static_cast<int>(own - members_.begin());
}

// A link between positions a < b is the edge (a, b). Each rank makes its edges in ascending order of pairs, which for
// one rank is the order of its peers. The rank that is waited for makes at most an earlier edge: no circle.
void Mesh::prepare(std::span<const int> peers) {
  std::vector<int> missing;
  for (const int peer : peers) {
    RINGTUNE_CHECK(peer >= 0 && peer < size() && peer != rank_, "position ", peer, " in a group of ", size());
    if (links_[static_cast<std::size_t>(peer)] == nullptr) missing.push_back(peer);
  }
  if (missing.empty()) return;
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  const Deadline deadline = Deadline::after(options_.connect_timeout_ns);
  for (const int peer : missing) {
    const auto index = static_cast<std::size_t>(peer);
    links_[index] = &fabric_.connect(members_[index], options_.channel, deadline);
  }
}

Link& Mesh::link(int peer) const {
  Link* const link = links_.at(static_cast<std::size_t>(peer));
  RINGTUNE_CHECK(link != nullptr, "the link to position ", peer, " was not prepared");
  return *link;
}

}  // namespace ringtune
