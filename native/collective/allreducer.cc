#include "collective/allreducer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "collective/allreduce.h"
#include "collective/schedule_runner.h"
#include "collective/stream_transfer.h"

namespace ringtune {
namespace {

// Below it one rank per host on the wire: fewer messages. Above it all: each carries a slice.
constexpr std::size_t kLeaderBytes = 32 << 10;

LinkClass class_of(const Fabric& fabric, const std::vector<int>& members) {
  for (const int a : members) {
    for (const int b : members) {
      if (a < b && !fabric.share_memory(a, b)) return LinkClass::kNetwork;
    }
  }
  return LinkClass::kMemory;
}

std::vector<std::string> hosts_of(const Fabric& fabric, const std::vector<int>& members) {
  const std::vector<std::string> all = fabric.hosts();
  std::vector<std::string> hosts;
  for (const int member : members) hosts.push_back(all.at(static_cast<std::size_t>(member)));
  return hosts;
}

std::unique_ptr<Mesh> sub_mesh(Fabric& fabric, const std::vector<int>& members, const std::vector<int>& positions,
                               MeshOptions options) {
  std::vector<int> ranks;
  for (const int position : positions) ranks.push_back(members[static_cast<std::size_t>(position)]);
  return std::make_unique<Mesh>(fabric, std::move(ranks), std::move(options));
}

MeshOptions named(MeshOptions options, const char* suffix) {
  options.channel += suffix;
  return options;
}

/// The ring over the links of a mesh.
Group ring_of(Mesh& mesh) {
  Group group{.rank = mesh.rank(), .size = mesh.size(), .waker = &mesh.waker()};
  group.idle_timeout_ns = mesh.idle_timeout_ns();
  if (group.size == 1) return group;
  const int next = (group.rank + 1) % group.size;
  const int previous = (group.rank + group.size - 1) % group.size;
  mesh.prepare(std::vector<int>{next, previous});
  group.next = &mesh.link(next);
  group.prev = &mesh.link(previous);
  return group;
}

}  // namespace

Allreducer::Allreducer(Fabric& fabric, const std::vector<int>& members, const Group& ring, AllreducerOptions options)
    : ring_(ring),
      table_(std::move(options.table)),
      layout_(layout_of(hosts_of(fabric, members), ring.rank)),
      links_(class_of(fabric, members)),
      mesh_(fabric, members, options.mesh) {
  if (!layout_.has_levels()) return;
  local_ = sub_mesh(fabric, members, layout_.local, named(options.mesh, ".local"));
  if (layout_.homogeneous) cross_ = sub_mesh(fabric, members, layout_.cross, named(options.mesh, ".cross"));
  if (layout_.local.front() == ring.rank) {
    leaders_ = sub_mesh(fabric, members, layout_.leaders, named(options.mesh, ".leaders"));
  }
}

Algorithm Allreducer::choose(std::size_t bytes, const AlgorithmWish& wish) const noexcept {
  const bool levels = layout_.has_levels();
  if (levels && wish.hierarchical == Switch::kOn) return Algorithm::kHierarchical;
  Algorithm algorithm = wish.algorithm;
  if (algorithm == Algorithm::kTable) {
    if (levels && wish.hierarchical == Switch::kAuto) return Algorithm::kHierarchical;
    algorithm = table_.choose(links_, ring_.size, bytes);
  }
  return algorithm == Algorithm::kHierarchical && !levels ? Algorithm::kRing : algorithm;
}

void Allreducer::run(std::span<std::byte> data, DType dtype, ReduceOp op, Algorithm algorithm,
                     const RingOptions& ring) {
  if (algorithm == Algorithm::kHierarchical) {
    run_hierarchical(data, dtype, op, ring);
  } else {
    allreduce({.ring = &ring_, .mesh = &mesh_}, data, dtype, op, {.algorithm = algorithm, .ring = ring});
  }
}

void Allreducer::run_hierarchical(std::span<std::byte> data, DType dtype, ReduceOp op, const RingOptions& ring) {
  RINGTUNE_CHECK(layout_.has_levels(), "a hierarchical allreduce on one level");
  if (data.empty()) return;
  if (!layout_.homogeneous || data.size() <= kLeaderBytes) {
    run_leaders(data, dtype, op, ring);
  } else {
    run_slices(data, dtype, op, ring);
  }
}

/// A tree within the host, whose root alone goes on the wire.
void Allreducer::run_leaders(std::span<std::byte> data, DType dtype, ReduceOp op, const RingOptions& ring) {
  const ScheduleJob job{.what = "hierarchical allreduce", .dtype = dtype, .op = op};
  const Schedule tree = binomial_tree(local_->rank(), local_->size(), data.size());
  const auto split = tree.begin() + static_cast<std::ptrdiff_t>(tree.size() / 2);
  run_schedule(*local_, data, Schedule(tree.begin(), split), job);
  if (leaders_) run_across(*leaders_, data, dtype, op, ring);
  run_schedule(*local_, data, Schedule(split, tree.end()), job);
}

/// A ring's reduce-scatter within the host, every member's slice across hosts, a ring's allgather within the host.
void Allreducer::run_slices(std::span<std::byte> data, DType dtype, ReduceOp op, const RingOptions& ring) {
  const Group group = ring_of(*local_);
  const std::vector<ChunkRange> chunks = cut_chunks(data.size(), size_of(dtype), group.size);
  const std::vector<RingStep> steps = ring_steps(group.rank, group.size);
  StreamTransfer scatter{.what = "hierarchical allreduce", .arrival = {.dtype = dtype, .op = op}};
  StreamTransfer gather{.what = "hierarchical allreduce"};
  for (const RingStep& step : steps) {
    StreamTransfer& transfer = step.phase == RingPhase::kReduceScatter ? scatter : gather;
    transfer.send.push_back(chunks[static_cast<std::size_t>(step.send_chunk)]);
    transfer.recv.push_back(chunks[static_cast<std::size_t>(step.recv_chunk)]);
  }
  scatter.arrival.reduced_pieces = scatter.recv.size();
  scatter.ready_bytes = scatter.send.front().size;
  const ChunkRange own = gather.send.front();
  gather.ready_bytes = own.size;
  scatter.segment_bytes = gather.segment_bytes = std::max<std::size_t>(64, (ring.segment_bytes + 63) / 64 * 64);
  run_transfer(group, data, scatter);
  run_across(*cross_, data.subspan(own.begin, own.size), dtype, op, ring);
  run_transfer(group, data, gather);
}

void Allreducer::run_across(Mesh& mesh, std::span<std::byte> data, DType dtype, ReduceOp op, const RingOptions& ring) {
  Algorithm algorithm = table_.choose(LinkClass::kNetwork, mesh.size(), data.size());
  if (algorithm == Algorithm::kHierarchical) algorithm = Algorithm::kRing;
  const Group group = algorithm == Algorithm::kRing ? ring_of(mesh) : Group{};
  allreduce({.ring = &group, .mesh = &mesh}, data, dtype, op, {.algorithm = algorithm, .ring = ring});
}

}  // namespace ringtune
