#include "collective/allreduce.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "collective/schedule_runner.h"
#include "device/cpu_kernels.h"

namespace ringtune {
namespace {

// The blocks of all ranks together: what the flat algorithm keeps at most, larger tensors go piece by piece.
constexpr std::size_t kFlatBytes = 4 << 20;

/// Piece by piece: the blocks of all ranks side by side, then one fold in the order of ranks.
class FlatRun final : public Activity {
 public:
  FlatRun(Mesh& mesh, std::span<std::byte> data, const ScheduleJob& job)
      : mesh_(mesh),
        data_(data),
        job_(job),
        what_(job.what),
        piece_(std::max<std::size_t>(64, kFlatBytes / static_cast<std::size_t>(mesh.size()) / 64 * 64)) {
    job_.what = what_;
    std::vector<int> peers;
    for (int peer = 0; peer < mesh.size(); ++peer) {
      if (peer != mesh.rank()) peers.push_back(peer);
    }
    mesh.prepare(peers);
  }
  FlatRun(const FlatRun&) = delete;  // job_ looks into what_
  FlatRun& operator=(const FlatRun&) = delete;

  bool advance() override {
    bool moved = false;
    while (!done()) {
      if (!exchange_) begin_piece();
      moved = exchange_->advance() || moved;
      if (!exchange_->done()) break;
      fold_piece();
      moved = true;
    }
    return moved;
  }
  [[nodiscard]] bool done() const override { return at_ == data_.size(); }
  [[nodiscard]] std::string complaint() const override { return exchange_->complaint(); }

 private:
  [[nodiscard]] std::span<std::byte> piece() const { return data_.subspan(at_, std::min(piece_, data_.size() - at_)); }

  void begin_piece() {
    const std::span<std::byte> own = piece();
    blocks_.resize(static_cast<std::size_t>(mesh_.size()) * own.size());
    std::memcpy(blocks_.data() + static_cast<std::size_t>(mesh_.rank()) * own.size(), own.data(), own.size());
    exchange_ = start_schedule(mesh_, blocks_, direct_allgather(mesh_.rank(), mesh_.size(), own.size()), job_);
  }

  void fold_piece() {
    const std::span<std::byte> own = piece();
    const auto size = static_cast<std::size_t>(mesh_.size());
    for (std::size_t from = 1; from < size; ++from) {
      reduce_into(blocks_.data(), blocks_.data() + from * own.size(), own.size() / size_of(job_.dtype), job_.dtype,
                  job_.op);
    }
    std::memcpy(own.data(), blocks_.data(), own.size());
    at_ += own.size();
    exchange_.reset();
  }

  Mesh& mesh_;
  std::span<std::byte> data_;
  ScheduleJob job_;
  std::string what_;
  std::size_t piece_;
  std::size_t at_ = 0;
  std::vector<std::byte> blocks_;
  ActivityPtr exchange_;
};

Schedule schedule_of(Algorithm algorithm, const Mesh& mesh, std::size_t bytes, std::size_t element_bytes) {
  switch (algorithm) {
    case Algorithm::kRecursiveDoubling:
      return recursive_doubling(mesh.rank(), mesh.size(), bytes);
    case Algorithm::kHalvingDoubling:
      return halving_doubling(mesh.rank(), mesh.size(), bytes, element_bytes);
    default:
      RINGTUNE_CHECK(algorithm == Algorithm::kTree, "algorithm ", name_of(algorithm), " has no schedule");
      return binomial_tree(mesh.rank(), mesh.size(), bytes);
  }
}

}  // namespace

ActivityPtr start_allreduce(const Paths& paths, const AllreduceJob& job) {
  RINGTUNE_CHECK(job.op != ReduceOp::kAverage && job.op != ReduceOp::kAdasum, name_of(job.op),
                 " is composed above the algorithms");
  Algorithm algorithm = job.options.algorithm;
  const bool ring = algorithm == Algorithm::kRing;
  const int size = ring ? paths.ring->size : paths.mesh->size();
  if (size == 1 || (job.data.empty() && job.agreement == nullptr))
    return std::make_unique<Sequence>(std::vector<ActivityPtr>{});
  if (ring && !job.data.empty()) return start_ring_allreduce(*paths.ring, job);
  if (job.pipeline != nullptr) job.pipeline->stage_in({0, job.data.size()});
  // Without a byte only this one passes every vote on to everybody.
  if (job.data.empty()) algorithm = Algorithm::kRecursiveDoubling;
  Mesh& mesh = *paths.mesh;
  const std::string what = std::string(name_of(algorithm)) + " allreduce";
  const ScheduleJob schedule{.what = what, .dtype = job.dtype, .op = job.op, .agreement = job.agreement};
  if (algorithm == Algorithm::kFlat) return std::make_unique<FlatRun>(mesh, job.data, schedule);
  return start_schedule(mesh, job.data, schedule_of(algorithm, mesh, job.data.size(), size_of(job.dtype)), schedule);
}

void allreduce(const Paths& paths, std::span<std::byte> data, DType dtype, ReduceOp op,
               const AllreduceOptions& options) {
  const ActivityPtr run = start_allreduce(paths, {.data = data, .dtype = dtype, .op = op, .options = options});
  if (options.algorithm == Algorithm::kRing) {
    finish(*run, *paths.ring->waker, paths.ring->idle_timeout_ns);
  } else {
    finish(*run, paths.mesh->waker(), paths.mesh->idle_timeout_ns());
  }
}

}  // namespace ringtune
