#include "collective/allreduce.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "collective/schedule_runner.h"
#include "device/cpu_kernels.h"

namespace ringtune {
namespace {

// The blocks of all ranks together: what the flat algorithm keeps at most, larger tensors go piece by piece.
constexpr std::size_t kFlatBytes = 4 << 20;

/// The blocks of all ranks side by side, then one fold in the order of ranks.
void flat_piece(Mesh& mesh, std::span<std::byte> data, std::vector<std::byte>& blocks, const ScheduleJob& job) {
  const auto size = static_cast<std::size_t>(mesh.size());
  blocks.resize(size * data.size());
  std::memcpy(blocks.data() + static_cast<std::size_t>(mesh.rank()) * data.size(), data.data(), data.size());
  run_schedule(mesh, blocks, direct_allgather(mesh.rank(), mesh.size(), data.size()), job);
  for (std::size_t from = 1; from < size; ++from) {
    reduce_into(blocks.data(), blocks.data() + from * data.size(), data.size() / size_of(job.dtype), job.dtype, job.op);
  }
  std::memcpy(data.data(), blocks.data(), data.size());
}

void flat_allreduce(Mesh& mesh, std::span<std::byte> data, const ScheduleJob& job) {
  std::vector<std::byte> blocks;
  const std::size_t piece = std::max<std::size_t>(64, kFlatBytes / static_cast<std::size_t>(mesh.size()) / 64 * 64);
  for (std::size_t at = 0; at < data.size(); at += piece) {
    flat_piece(mesh, data.subspan(at, std::min(piece, data.size() - at)), blocks, job);
  }
}

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

void allreduce(const Paths& paths, std::span<std::byte> data, DType dtype, ReduceOp op,
               const AllreduceOptions& options) {
  if (options.algorithm == Algorithm::kRing) {
    ring_allreduce(*paths.ring, data, dtype, op, options.ring);
    return;
  }
  RINGTUNE_CHECK(op != ReduceOp::kAverage && op != ReduceOp::kAdasum, name_of(op), " is composed above the algorithms");
  Mesh& mesh = *paths.mesh;
  if (mesh.size() == 1 || data.empty()) return;
  const std::string what = std::string(name_of(options.algorithm)) + " allreduce";
  const ScheduleJob job{.what = what, .dtype = dtype, .op = op};
  if (options.algorithm == Algorithm::kFlat) {
    flat_allreduce(mesh, data, job);
  } else {
    run_schedule(mesh, data, schedule_of(options.algorithm, mesh, data.size(), size_of(dtype)), job);
  }
}

}  // namespace ringtune
