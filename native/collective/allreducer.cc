#include "collective/allreducer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
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

/// Takes a range that is there, a segment at a time.
class Unpacking final : public Activity {
 public:
  Unpacking(PackPipeline& unpacker, ChunkRange range, std::size_t segment_bytes, const AgreementHeader* agreement)
      : unpacker_(unpacker), left_(range), segment_bytes_(segment_bytes), agreement_(agreement) {}
  bool advance() override {
    if (done()) return false;
    const std::size_t bytes = std::min(left_.size, segment_bytes_);
    if (agreement_ == nullptr || !agreement_->against()) unpacker_.stage_out({left_.begin, bytes});
    left_ = {left_.begin + bytes, left_.size - bytes};
    return true;
  }
  [[nodiscard]] bool done() const override { return left_.size == 0; }
  [[nodiscard]] std::string complaint() const override { return "a result is copied"; }

 private:
  PackPipeline& unpacker_;
  ChunkRange left_;
  std::size_t segment_bytes_;
  const AgreementHeader* agreement_;  // all of its votes are known
};

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
      options_(std::move(options)),
      layout_(layout_of(hosts_of(fabric, members), ring.rank)),
      links_(class_of(fabric, members)),
      mesh_(fabric, members, options_.mesh) {
  if (!layout_.has_levels()) return;
  local_ = sub_mesh(fabric, members, layout_.local, named(options_.mesh, ".local"));
  if (layout_.homogeneous) cross_ = sub_mesh(fabric, members, layout_.cross, named(options_.mesh, ".cross"));
  if (layout_.local.front() == ring.rank) {
    leaders_ = sub_mesh(fabric, members, layout_.leaders, named(options_.mesh, ".leaders"));
  }
}

Algorithm Allreducer::choose(std::size_t bytes, const AlgorithmWish& wish) const noexcept {
  const bool levels = layout_.has_levels();
  if (levels && wish.hierarchical == Switch::kOn) return Algorithm::kHierarchical;
  Algorithm algorithm = wish.algorithm;
  if (algorithm == Algorithm::kTable) {
    if (levels && wish.hierarchical == Switch::kAuto) return Algorithm::kHierarchical;
    algorithm = options_.table.choose(links_, ring_.size, bytes);
  }
  return algorithm == Algorithm::kHierarchical && !levels ? Algorithm::kRing : algorithm;
}

void Allreducer::run(const AllreduceJob& job) { finish(*start(job), mesh_.waker(), mesh_.idle_timeout_ns()); }

ActivityPtr Allreducer::start(const AllreduceJob& job) {
  if (job.options.algorithm != Algorithm::kHierarchical) {
    return start_allreduce({.ring = &ring_, .mesh = &mesh_}, job);
  }
  RINGTUNE_CHECK(layout_.has_levels(), "a hierarchical allreduce on one level");
  if (job.data.empty() && job.agreement == nullptr) return std::make_unique<Sequence>(std::vector<ActivityPtr>{});
  return by_slices(job) ? start_slices(job) : start_leaders(job);
}

bool Allreducer::by_slices(const AllreduceJob& job) const {
  if (!layout_.homogeneous || job.data.size() <= kLeaderBytes) return false;
  // Every slice must carry a byte, or a vote would be lost with it.
  return cut_chunks(job.data.size(), size_of(job.dtype), local_->size()).back().size > 0;
}

/// A tree within the host, whose root alone goes on the wire.
ActivityPtr Allreducer::start_leaders(const AllreduceJob& job) {
  const ScheduleJob part{
      .what = "hierarchical allreduce", .dtype = job.dtype, .op = job.op, .agreement = job.agreement};
  const Schedule tree = binomial_tree(local_->rank(), local_->size(), job.data.size());
  const auto split = tree.begin() + static_cast<std::ptrdiff_t>(tree.size() / 2);
  std::vector<ActivityPtr> parts;
  if (job.pipeline != nullptr) job.pipeline->stage_in({0, job.data.size()});
  parts.push_back(start_schedule(*local_, job.data, Schedule(tree.begin(), split), part));
  if (leaders_) parts.push_back(start_across(*leaders_, job));
  parts.push_back(start_schedule(*local_, job.data, Schedule(split, tree.end()), part));
  return std::make_unique<Sequence>(std::move(parts));
}

/// A ring's reduce-scatter within the host, every member's slice across hosts, a ring's allgather within the host, and
/// that for one block after another: while one crosses hosts, the next is scattered and the last gathered.
ActivityPtr Allreducer::start_slices(const AllreduceJob& job) {
  const Group group = ring_of(*local_);
  std::vector<Block> blocks;
  for (const ChunkRange& range : blocks_of(job)) blocks.push_back(start_block(group, job, range));
  // What shares links must begin in the same order on all of them. A block is scattered before the last but one is
  // gathered, so that there is always one to cross.
  std::vector<Lanes::Part> within;
  std::vector<Lanes::Part> across;
  for (std::size_t i = 0; i <= blocks.size(); ++i) {
    const Activity* const scattered = i < blocks.size() ? blocks[i].scatter.get() : nullptr;
    if (scattered != nullptr) within.push_back({std::move(blocks[i].scatter)});
    if (i > 0) {
      within.push_back({std::move(blocks[i - 1].gather), across.back().activity.get()});
      if (ActivityPtr& take = blocks[i - 1].take) within.push_back({std::move(take)});
    }
    if (scattered != nullptr) across.push_back({std::move(blocks[i].across), scattered});
  }
  std::vector<std::vector<Lanes::Part>> lanes;
  lanes.push_back(std::move(within));
  lanes.push_back(std::move(across));
  return std::make_unique<Lanes>(std::move(lanes));
}

/// The same on all ranks.
std::vector<ChunkRange> Allreducer::blocks_of(const AllreduceJob& job) const {
  const auto ranks = static_cast<std::size_t>(local_->size()) * static_cast<std::size_t>(cross_->size());
  const std::size_t least = std::max({options_.block_bytes, options_.message_bytes * ranks, kLeaderBytes + 1});
  const std::size_t count = std::clamp<std::size_t>(job.data.size() / least, 1, options_.most_blocks);
  return cut_chunks(job.data.size(), size_of(job.dtype), static_cast<int>(count));
}

Allreducer::Block Allreducer::start_block(const Group& group, const AllreduceJob& job, ChunkRange range) {
  std::vector<ChunkRange> chunks = cut_chunks(range.size, size_of(job.dtype), group.size);
  for (ChunkRange& chunk : chunks) chunk.begin += range.begin;
  StreamTransfer scatter{.what = "hierarchical allreduce", .arrival = {.dtype = job.dtype, .op = job.op}};
  StreamTransfer gather{.what = "hierarchical allreduce"};
  for (const RingStep& step : ring_steps(group.rank, group.size)) {
    StreamTransfer& transfer = step.phase == RingPhase::kReduceScatter ? scatter : gather;
    transfer.send.push_back(chunks[static_cast<std::size_t>(step.send_chunk)]);
    transfer.recv.push_back(chunks[static_cast<std::size_t>(step.recv_chunk)]);
  }
  scatter.arrival.reduced_pieces = scatter.recv.size();
  scatter.ready_bytes = scatter.send.front().size;
  const ChunkRange own = gather.send.front();
  gather.ready_bytes = own.size;
  const bool votes = range.begin == 0;  // with the first block: they are all known before the next one is gathered
  for (StreamTransfer* transfer : {&scatter, &gather}) {
    transfer->segment_bytes = std::max<std::size_t>(64, (job.options.ring.segment_bytes + 63) / 64 * 64);
    if (votes) {
      transfer->agreement = job.agreement;
    } else {
      transfer->decided = job.agreement;
    }
  }
  scatter.packer = job.pipeline;
  gather.unpacker = job.pipeline;
  ActivityPtr take;
  if (job.pipeline != nullptr)
    take = std::make_unique<Unpacking>(*job.pipeline, own, scatter.segment_bytes, job.agreement);
  AllreduceJob slice = job;
  slice.data = job.data.subspan(own.begin, own.size);
  if (!votes) slice.agreement = nullptr;
  return {start_transfer(group, job.data, std::move(scatter)), start_across(*cross_, slice),
          start_transfer(group, job.data, std::move(gather)), std::move(take)};
}

void Allreducer::run_across(const AllreduceJob& job) {
  RINGTUNE_CHECK(has_slices(), "nothing crosses hosts slice by slice: they hold unequal numbers of ranks");
  if (job.data.empty()) return;
  if (job.pipeline != nullptr) job.pipeline->stage_in({0, job.data.size()});
  finish(*start_across(*cross_, job), mesh_.waker(), mesh_.idle_timeout_ns());
}

Algorithm Allreducer::choose_across(std::size_t bytes) const noexcept { return across(layout_.hosts(), bytes); }

/// Between so many hosts, which are one level.
Algorithm Allreducer::across(int hosts, std::size_t bytes) const noexcept {
  const Algorithm algorithm = options_.table.choose(LinkClass::kNetwork, hosts, bytes);
  return algorithm == Algorithm::kHierarchical ? Algorithm::kRing : algorithm;
}

ActivityPtr Allreducer::start_across(Mesh& mesh, AllreduceJob job) {
  const Algorithm algorithm = across(mesh.size(), job.data.size());
  const Group group = algorithm == Algorithm::kRing ? ring_of(mesh) : Group{};
  job.options.algorithm = algorithm;
  job.pipeline = nullptr;  // it is there
  return start_allreduce({.ring = &group, .mesh = &mesh}, job);
}

}  // namespace ringtune
