// Jobs whose tensors lie where a data path takes them, in host memory or on GPUs of the fake driver, and every data
// path by name: a new one joins all tests of the contract with one line.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gathered.h"
#include "gpu/hierarchy_job.h"
#include "gpu/packed_job.h"
#include "gpu/ring_job.h"
#include "runtime/job.h"

namespace ringtune::testing_support {

using Adjust = std::function<void(RuntimeOptions&)>;

class PathJob {
 public:
  explicit PathJob(std::unique_ptr<Job> host) : host_(std::move(host)) {}
  explicit PathJob(std::unique_ptr<NcclJob> gpus) : gpus_(std::move(gpus)) {}
  explicit PathJob(std::unique_ptr<HierarchyJob> hosts) : hosts_(std::move(hosts)) {}

  [[nodiscard]] Runtime& operator[](int rank) { return host_ ? (*host_)[rank] : (*gpus())[rank]; }
  [[nodiscard]] int size() const { return host_ ? host_->size() : gpus()->size(); }
  /// Null where tensors are in host memory.
  [[nodiscard]] NcclJob* gpus() const { return hosts_ ? hosts_.get() : gpus_.get(); }
  void on_every_rank(const std::function<void(int rank)>& act) {
    host_ ? host_->on_every_rank(act) : gpus()->on_every_rank(act);
  }
  void end() {
    host_.reset();
    if (gpus() != nullptr) gpus()->end();
  }

  Submission of(int rank, const std::string& name, const std::byte* input, std::byte* output,
                std::vector<std::int64_t> shape) {
    if (gpus() != nullptr) return gpus()->of(rank, name, input, output, DType::kInt32, std::move(shape));
    Submission submission{{}, input, output};
    submission.request.name = name;
    submission.request.dtype = DType::kInt32;
    submission.request.shape = std::move(shape);
    return submission;
  }
  void finish(int rank, Ticket ticket) {
    if (gpus() == nullptr) return testing_support::finish((*this)[rank], ticket);
    gpus()->join(rank, ticket);
    (*this)[rank].release(ticket);
  }
  void run(int rank, Submission submission) { finish(rank, (*this)[rank].submit(std::move(submission))); }
  /// What an allgather that was submitted gives, and of which shape.
  std::pair<std::vector<std::int32_t>, std::vector<std::int64_t>> gathered(int rank, Ticket ticket) {
    Runtime& runtime = (*this)[rank];
    if (!runtime.wait(ticket, Deadline::after(20'000'000'000))) throw Timeout("the operation did not end");
    if (gpus() != nullptr) {
      const std::vector<std::int64_t> shape = runtime.gathered_on_device(ticket).shape;
      return {delivered(*gpus(), rank, ticket), shape};
    }
    const Operation& operation = *runtime.operation(ticket);
    std::pair found{numbers_in(operation.gathered), operation.gathered_shape};
    runtime.release(ticket);
    return found;
  }

 private:
  std::unique_ptr<Job> host_;
  std::unique_ptr<NcclJob> gpus_;
  std::unique_ptr<HierarchyJob> hosts_;
};

/// Integers where the path takes them. A program sees what its stream, if it has one, has done.
class PathTensor {
 public:
  PathTensor(PathJob& job, int rank, const std::vector<std::int32_t>& values) : job_(job), rank_(rank), host_(values) {
    if (job.gpus() != nullptr) device_.emplace(job.gpus()->device(rank), values);
  }
  PathTensor(const PathTensor&) = delete;
  PathTensor& operator=(const PathTensor&) = delete;

  [[nodiscard]] std::byte* data() { return device_ ? device_->data() : reinterpret_cast<std::byte*>(host_.data()); }
  [[nodiscard]] std::size_t size() const { return host_.size(); }
  void fill(std::int32_t value) {
    device_ ? device_->fill(job_.gpus()->stream(rank_), value) : host_.assign(host_.size(), value);
  }
  [[nodiscard]] std::vector<std::int32_t> values() const {
    return device_ ? device_->values(job_.gpus()->stream(rank_)) : host_;
  }

 private:
  PathJob& job_;
  int rank_;
  std::vector<std::int32_t> host_;
  std::optional<DeviceArray<std::int32_t>> device_;
};

inline Submission allreduce_of(PathJob& job, int rank, const std::string& name, PathTensor& input, PathTensor& output) {
  return job.of(rank, name, input.data(), output.data(), {static_cast<std::int64_t>(input.size())});
}
inline Submission allgather_of(PathJob& job, int rank, const std::string& name, PathTensor& input,
                               std::vector<std::int64_t> shape) {
  Submission submission = job.of(rank, name, input.data(), nullptr, std::move(shape));
  submission.request.kind = CollectiveKind::kAllgather;
  return submission;
}

struct Path {
  const char* name;
  const char* algorithm;  // of its batches in the timeline
  std::unique_ptr<PathJob> (*job)(int size, const Adjust& adjust);
  bool nccl = false;    // its batches are calls of NCCL
  bool staged = false;  // its tensors come from a GPU to the host
};
inline std::string name_of_path(const testing::TestParamInfo<Path>& info) { return info.param.name; }
inline void PrintTo(const Path& path, std::ostream* out) { *out << path.name; }

/// As the adjustments say, one after the other.
inline Adjust both(Adjust first, Adjust second) {
  return [first = std::move(first), second = std::move(second)](RuntimeOptions& options) {
    first(options);
    if (second) second(options);
  };
}
inline void over_links(RuntimeOptions& options) {
  options.knobs.algorithm = static_cast<std::uint32_t>(Algorithm::kRing);
}
inline void through_the_host(RuntimeOptions& options) { options.gpu_data_path = GpuDataPath::kStaged; }

constexpr Path kSharedMemoryPath{"SharedMemory", "shared-memory", [](int size, const Adjust& adjust) {
                                   return std::make_unique<PathJob>(std::make_unique<Job>(size, adjust));
                                 }};
constexpr Path kLinkPath{"Links", "ring", [](int size, const Adjust& adjust) {
                           return std::make_unique<PathJob>(std::make_unique<Job>(size, both(over_links, adjust)));
                         }};
constexpr Path kNcclPath{
    "Nccl", "nccl",
    [](int size, const Adjust& adjust) { return std::make_unique<PathJob>(std::make_unique<NcclJob>(size, adjust)); },
    true};
/// Batches of several tensors are one call of NCCL.
constexpr Path kPackedNcclPath{
    "PackedNccl", "nccl",
    [](int size, const Adjust& adjust) {
      return std::make_unique<PathJob>(std::unique_ptr<NcclJob>(std::make_unique<PackedJob>(size, adjust)));
    },
    true};
/// Each rank has a neighbour on its host. Of allreduces alone; the others are staged.
constexpr Path kNcclWithinHostsPath{"NcclWithinHosts", "nccl",
                                    [](int size, const Adjust& adjust) {
                                      std::vector<std::string> hosts;
                                      for (int rank = 0; rank < 2 * size; ++rank) {
                                        hosts.push_back(std::string(1, static_cast<char>('a' + rank / 2)));
                                      }
                                      return std::make_unique<PathJob>(std::make_unique<HierarchyJob>(hosts, adjust));
                                    },
                                    true, true};
constexpr Path kRingOnOneGpuPath{
    "RingOnOneGpu", "gpu-ring", [](int size, const Adjust& adjust) {
      return std::make_unique<PathJob>(std::unique_ptr<NcclJob>(std::make_unique<RingJob>(size, adjust)));
    }};
constexpr Path kRingBetweenGpusPath{
    "RingBetweenGpus", "gpu-ring", [](int size, const Adjust& adjust) {
      const Adjust without_nccl = [](RuntimeOptions& options) { options.nccl_libraries.clear(); };
      return std::make_unique<PathJob>(
          std::unique_ptr<NcclJob>(std::make_unique<RingJob>(size, size, both(without_nccl, adjust))));
    }};
constexpr Path kStagedPath{
    "Staged", "shared-memory",
    [](int size, const Adjust& adjust) {
      return std::make_unique<PathJob>(std::make_unique<NcclJob>(size, both(through_the_host, adjust)));
    },
    false, true};
constexpr Path kStagedOverLinksPath{"StagedOverLinks", "ring",
                                    [](int size, const Adjust& adjust) {
                                      return std::make_unique<PathJob>(std::make_unique<NcclJob>(
                                          size, both(through_the_host, both(over_links, adjust))));
                                    },
                                    false, true};

}  // namespace ringtune::testing_support
