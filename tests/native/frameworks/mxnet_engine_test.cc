#include "frameworks/mxnet_engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "frameworks/call_plan.h"
#include "frameworks/port.h"
#include "runtime/job.h"

namespace ringtune::frameworks::mxnet {
namespace {

using testing_support::Job;

/// What MXNet's NDArray is to us: it begins with the pointer to what its views share.
struct FakeArray {
  void* shared;
  std::vector<float>* values;
};

std::atomic<int> copies{0};
std::atomic<int> dropped{0};

int push_async(Run run, void* parameter, void (*drop)(void*), const void*, Array*, int reads, Array*, int writes,
               const void*, int, const char*, bool) {
  EXPECT_TRUE((reads == 0 && writes == 1) || (reads == 1 && writes == 1) || (reads == 1 && writes == 0));
  // As the engine: on another thread, with words that are gone when the operation has been started.
  auto told = std::make_shared<std::promise<std::string>>();
  std::future<std::string> ended = told->get_future();
  std::thread([&] {
    Completion words{
        [](void*, void* here, const void* error) {
          const auto* const thrown = static_cast<const std::runtime_error*>(error);
          static_cast<std::promise<std::string>*>(here)->set_value(thrown == nullptr ? "" : thrown->what());
        },
        nullptr, told.get()};
    run(nullptr, &words, parameter);
    words = {};
  }).join();
  const std::string failure = ended.get();
  drop(parameter);
  ++dropped;
  EXPECT_EQ(failure.find("ringtune.Mismatch: "), failure.empty() ? std::string::npos : 0U) << failure;
  return failure.empty() ? 0 : -1;
}

int shallow_copy(Array array, Array* copy) {
  ++copies;
  *copy = new FakeArray(*static_cast<FakeArray*>(array));
  return 0;
}

int free_array(Array array) {
  --copies;
  delete static_cast<FakeArray*>(array);
  return 0;
}

int data_of_array(Array array, void** data) {
  *data = static_cast<FakeArray*>(array)->values->data();
  return 0;
}

int dtype_of_array(Array, int* dtype) {
  *dtype = 0;
  return 0;
}

int shape_of_array(Array array, int* rank, const std::int64_t** dims) {
  thread_local std::int64_t length = 0;
  length = static_cast<std::int64_t>(static_cast<FakeArray*>(array)->values->size());
  *rank = 1;
  *dims = &length;
  return 0;
}

Api fake() {
  return {&push_async, &shallow_copy, &free_array, &data_of_array, &dtype_of_array, &shape_of_array, [] {
            return "as the engine was told";
          }};
}

/// The port of the process has one runtime: that of a job of one.
struct OneRank : testing::Test {
  OneRank() : job(1) {
    use(fake());
    port().open(job[0]);
  }
  ~OneRank() override {
    job.on_every_rank([&](int rank) { job[rank].shutdown(5'000'000'000); });
    port().close(job[0]);
  }
  Job job;
};

constexpr const char* kSum = "0 1 0 0 -1 0 2 1\nsum";

using MxnetEngine = OneRank;

TEST_F(MxnetEngine, AnOperationReadsItsArrayAndWritesTheResult) {
  std::vector<float> in{1, 2, 3};
  std::vector<float> out(3);
  FakeArray input{&in, &in};
  FakeArray output{&out, &out};
  EXPECT_EQ(push(kSum, {&input}, {&output}, 0), "");
  EXPECT_EQ(out, (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(push(kSum, {&input}, {&input}, 0), "");
  EXPECT_EQ(in, (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(copies, 0);
}

TEST_F(MxnetEngine, ViewsOfOneArrayAreWrittenOnce) {
  std::vector<float> first{1};
  std::vector<float> second{2};
  FakeArray one{&first, &first};
  FakeArray two{&first, &second};
  EXPECT_EQ(push("0 1 0 0 -1 0 2 1\nleft\nright", {&one, &two}, {&one, &two}, 0), "");
  EXPECT_EQ(first.front() + second.front(), 6);
}

TEST_F(MxnetEngine, AStepEndsAfterItsArrays) {
  std::vector<float> values{1};
  FakeArray array{&values, &values};
  port().follow_steps(false);
  push_end_of_step({&array, &array});
  EXPECT_FALSE(port().next_step()->detected);
  port().stop_following();
}

TEST_F(MxnetEngine, WhatIsWrongOnThisRankIsRefusedBeforeAnythingIsPutIn) {
  std::vector<float> values{1};
  FakeArray array{&values, &values};
  const int before = dropped;
  EXPECT_THROW((void)push(kSum, {&array}, {}, 0), InvalidArgument);
  EXPECT_THROW((void)push("0 1 0 9 -1 0 1 1\nin no such set", {&array}, {&array}, 0), InvalidArgument);
  EXPECT_EQ(dropped, before);
  EXPECT_EQ(copies, 0);
}

TEST_F(MxnetEngine, AnEngineThatRunsEverythingAtOnceIsPassedBy) {
  Api api = fake();
  api.EnginePushAsyncND = nullptr;
  api.at_once = true;
  use(api);
  std::vector<float> values{1, 2};
  FakeArray array{&values, &values};
  EXPECT_EQ(push(kSum, {&array}, {&array}, 0), "");
  EXPECT_EQ(values, (std::vector<float>{2, 4}));
}

TEST(MxnetLibrary, OneThatLacksAFunctionIsRefusedByItsName) {
  try {
    (void)api_of(nullptr);  // this program, in which there is no MXNet
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("MXEnginePushAsyncND"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ringtune::frameworks::mxnet
