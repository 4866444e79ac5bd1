// A job of several runtimes in one process, over in-process fabrics if no others are given; each rank acts on its own
// thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/runtime.h"

namespace ringtune::testing_support {

constexpr std::int64_t kSecondNs = 1'000'000'000;

/// An incomplete batch waits for as long as a loaded machine may need to submit the rest of it: for tests that count
/// what whole batches cost. Nobody waits that long, because whoever waits for a tensor ends the wait.
inline void patient(RuntimeOptions& options) { options.knobs.cycle_time_ns = 5'000'000'000; }

class Job {
 public:
  explicit Job(int size, const std::function<void(RuntimeOptions&)>& adjust = {})
      : Job(make_inproc_fabrics(size), adjust) {}
  Job(std::vector<std::unique_ptr<Fabric>> fabrics, const std::function<void(RuntimeOptions&)>& adjust)
      : runtimes_(fabrics.size()) {
    on_every_rank([&](int rank) {
      RuntimeOptions options;
      options.rank = rank;
      options.size = size();
      options.knobs.cycle_time_ns = 100'000;
      options.log_level = 5;
      if (adjust) adjust(options);
      const auto index = static_cast<std::size_t>(rank);
      runtimes_[index] = std::make_unique<Runtime>(options, std::move(fabrics[index]));
    });
  }
  ~Job() {
    on_every_rank([&](int rank) { (*this)[rank].shutdown(5'000'000'000); });
  }

  /// Runs `act(rank)` on a thread per rank; rethrows the first error.
  void on_every_rank(const std::function<void(int rank)>& act) {
    std::vector<std::exception_ptr> errors(runtimes_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < runtimes_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          act(static_cast<int>(rank));
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

  [[nodiscard]] Runtime& operator[](int rank) { return *runtimes_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int size() const { return static_cast<int>(runtimes_.size()); }

 private:
  std::vector<std::unique_ptr<Runtime>> runtimes_;
};

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::kInt32;
}

template <typename T>
Submission allreduce_of(const std::string& name, std::vector<T>& data, ReduceOp op = ReduceOp::kSum) {
  Submission submission{{}, data.data(), data.data()};
  submission.request.name = name;
  submission.request.dtype = dtype_of<T>();
  submission.request.op = op;
  submission.request.shape = {static_cast<std::int64_t>(data.size())};
  return submission;
}

inline Submission barrier_of(const std::string& name) {
  Submission submission;
  submission.request.name = name;
  submission.request.kind = CollectiveKind::kBarrier;
  submission.request.shape = {0};
  return submission;
}

inline Submission submission_of(const AllreduceCall& call) { return {request_of(call), call.input, call.output}; }

/// Of a vector, under the collective's name.
inline Submission submission_of(CollectiveKind kind, const std::vector<std::int32_t>& input, std::int32_t* output) {
  Submission submission{{}, input.data(), output};
  submission.request.name = std::string(name_of(kind));
  submission.request.kind = kind;
  submission.request.dtype = dtype_of<std::int32_t>();
  submission.request.shape = {static_cast<std::int64_t>(input.size())};
  return submission;
}

inline std::vector<std::int32_t> numbers_in(std::span<const std::byte> bytes) {
  std::vector<std::int32_t> numbers(bytes.size() / sizeof(std::int32_t));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

/// Waits at most ten seconds: a test fails instead of hanging.
inline void finish(Runtime& runtime, Ticket ticket) {
  if (!runtime.wait(ticket, Deadline::after(10'000'000'000))) throw Timeout("the test's operation did not end");
  runtime.release(ticket);
}

}  // namespace ringtune::testing_support
