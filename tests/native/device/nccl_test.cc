// NCCL behind its seam: which library is taken, and communicators that nobody has to wait in.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>

#include "base/error.h"
#include "device/fake_nccl_gpus.h"
#include "device/nccl_communicator.h"
#include "device/nccl_library.h"
#include "thrown.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::FakeNccl;
using testing_support::message_of;

using Floats = std::vector<float>;

constexpr int kFloat32 = 7;
constexpr int kSum = 0;

Deadline soon() { return Deadline::after(20'000'000'000); }

TEST(NcclLibrary, TheFirstThatOpensIsTaken) {
  const FakeNccl nccl(1);
  const NcclLibrary& library = NcclLibrary::open({"/no/such/libnccl.so.2", FakeNccl::path()});
  EXPECT_EQ(library.path(), FakeNccl::path());
  EXPECT_EQ(library.version(), 21805);
  EXPECT_EQ(nccl_version_text(library.version()), "2.18.5");
  EXPECT_EQ(&NcclLibrary::open({"/no/such/libnccl.so.2", FakeNccl::path()}), &library);
}

TEST(NcclLibrary, OneThatIsMissingTooOldOrNoneSaysWhatToDo) {
  const FakeNccl nccl(1);
  const std::string missing = message_of<DeviceError>([] { (void)NcclLibrary::open({"/no/such/libnccl.so.2"}); });
  EXPECT_EQ(missing.find("NCCL cannot be opened (/no/such/libnccl.so.2: "), 0U) << missing;
  EXPECT_NE(missing.find("install nvidia-nccl-cu12 or nvidia-nccl-cu13"), std::string::npos);
  FakeNccl::set_version(21705);
  EXPECT_EQ(message_of<DeviceError>([] { (void)NcclLibrary::open({"./no-such", FakeNccl::path()}); }),
            "the NCCL in " + FakeNccl::path() + " is version 2.17.5: install NCCL 2.18.0 or newer");
  const std::string other = message_of<DeviceError>([] { (void)NcclLibrary::open({FakeGpu::path()}); });
  EXPECT_NE(other.find("install NCCL 2.18.0 or newer"), std::string::npos) << other;
}

/// A communicator whose ranks are threads, each with a GPU and a stream.
class Ring {
 public:
  explicit Ring(int size) : nccl_(size) {
    FakeNccl::library().check(FakeNccl::library().api().get_unique_id(&id_), "ncclGetUniqueId");
    for (int rank = 0; rank < size; ++rank) {
      devices_.push_back(std::make_unique<CudaDevice>(FakeGpu::driver(), rank));
      const CudaDevice::Current current(*devices_.back());
      streams_.push_back(std::make_unique<CudaStream>(*devices_.back()));
    }
  }
  void on_every_rank(const std::function<void(int rank, const CudaDevice&, CudaStream&)>& act) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const CudaDevice::Current current(*devices_[rank]);
        act(static_cast<int>(rank), *devices_[rank], *streams_[rank]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  [[nodiscard]] const NcclUniqueId& id() const { return id_; }
  [[nodiscard]] int size() const { return static_cast<int>(devices_.size()); }
  FakeNccl& fake() { return nccl_; }

 private:
  FakeNccl nccl_;
  NcclUniqueId id_;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::vector<std::unique_ptr<CudaStream>> streams_;
};

TEST(NcclCommunicator, AGroupIsInTheStreamWhenItHasSettled) {
  Ring ring(3);
  ring.on_every_rank([&](int rank, const CudaDevice& device, CudaStream& stream) {
    NcclCommunicator communicator(FakeNccl::library(), ring.id(), rank, ring.size());
    communicator.settle(soon());
    DeviceArray<float> first(device, Floats(5, 1.0F));
    DeviceArray<float> second(device, Floats(3, 2.0F));
    first.fill(stream.handle(), static_cast<float>(rank));
    communicator.group(
        [&](const NcclFunctions& api, NcclHandle handle) {
          for (const DeviceArray<float>* const array : {&first, &second}) {
            communicator.check(
                api.all_reduce(array->data(), array->data(), array->size(), kFloat32, kSum, handle, stream.handle()),
                "ncclAllReduce");
          }
        },
        soon());
    EXPECT_EQ(first.values(stream.handle()), Floats(5, 3.0F));
    EXPECT_EQ(second.values(stream.handle()), Floats(3, 6.0F));
    communicator.finish(soon());
  });
  EXPECT_EQ(FakeNccl::aborted(), 0);
}

TEST(NcclCommunicator, ASumCanBeScaledByAnyFactorOfTheDtype) {
  Ring ring(2);
  ring.on_every_rank([&](int rank, const CudaDevice& device, CudaStream& stream) {
    NcclCommunicator communicator(FakeNccl::library(), ring.id(), rank, ring.size());
    communicator.settle(soon());
    DeviceArray<float> array(device, Floats(4, rank == 0 ? 3.0F : 5.0F));
    const int op = communicator.scaled_sum(DType::kFloat32, 0.25);
    EXPECT_EQ(communicator.scaled_sum(DType::kFloat32, 0.25), op);
    EXPECT_NE(communicator.scaled_sum(DType::kFloat32, 0.5), op);
    communicator.group(
        [&](const NcclFunctions& api, NcclHandle handle) {
          communicator.check(api.all_reduce(array.data(), array.data(), 4, kFloat32, op, handle, stream.handle()),
                             "ncclAllReduce");
        },
        soon());
    EXPECT_EQ(array.values(stream.handle()), Floats(4, 2.0F));
    communicator.finish(soon());
  });
}

TEST(NcclCommunicator, AnErrorInAStreamIsFoundByWhoeverAsks) {
  Ring ring(2);
  ring.on_every_rank([&](int rank, const CudaDevice&, CudaStream&) {
    NcclCommunicator communicator(FakeNccl::library(), ring.id(), rank, ring.size());
    communicator.settle(soon());
    FakeNccl::break_rank(rank, 3);
    const std::string message = message_of<DeviceError>([&] { (void)communicator.settled(); });
    EXPECT_EQ(message.find("an operation of NCCL failed: internal error (NCCL error 3): the fake was told so"), 0U);
    communicator.finish(soon());  // cannot: it aborts
  });
  EXPECT_EQ(FakeNccl::aborted(), 2);
}

TEST(NcclCommunicator, AbortEndsWhatHangsInStreams) {
  Ring ring(2);
  ring.on_every_rank([&](int rank, const CudaDevice& device, CudaStream& stream) {
    NcclCommunicator communicator(FakeNccl::library(), ring.id(), rank, ring.size());
    communicator.settle(soon());
    FakeNccl::hang();
    DeviceArray<float> array(device, Floats(4, 1.0F));
    communicator.group(
        [&](const NcclFunctions& api, NcclHandle handle) {
          communicator.check(api.all_reduce(array.data(), array.data(), 4, kFloat32, kSum, handle, stream.handle()),
                             "ncclAllReduce");
        },
        soon());
    std::thread rescuer([&] { communicator.abort(); });
    (void)array.values(stream.handle());
    rescuer.join();
    EXPECT_EQ(message_of<DeviceError>([&] { (void)communicator.settled(); }), "the NCCL communicator was aborted");
  });
}

TEST(NcclCommunicator, OneThatNeverConnectsEndsAtTheDeadline) {
  Ring ring(1);
  FakeNccl::hang();
  ring.on_every_rank([&](int rank, const CudaDevice&, CudaStream&) {
    NcclCommunicator communicator(FakeNccl::library(), ring.id(), rank, ring.size());
    EXPECT_THROW(communicator.settle(Deadline::after(5'000'000)), Timeout);
  });
}

TEST(NcclCommunicator, ACallThatFailsLeavesNoGroupBehind) {
  Ring ring(1);
  ring.on_every_rank([&](int rank, const CudaDevice& device, CudaStream& stream) {
    NcclCommunicator communicator(FakeNccl::library(), ring.id(), rank, ring.size());
    communicator.settle(soon());
    DeviceArray<float> array(device, Floats(4, 1.0F));
    const auto reduce = [&](const NcclFunctions& api, NcclHandle handle) {
      communicator.check(api.all_reduce(array.data(), array.data(), 4, kFloat32, kSum, handle, stream.handle()),
                         "ncclAllReduce");
    };
    FakeNccl::fail("ncclAllReduce", 0, 3);
    EXPECT_EQ(message_of<DeviceError>([&] { communicator.group(reduce, soon()); }).find("ncclAllReduce failed"), 0U);
    communicator.group(reduce, soon());
    EXPECT_EQ(array.values(stream.handle()), Floats(4, 1.0F));
    communicator.finish(soon());
  });
}

TEST(NcclCommunicator, TheFakeRefusesAGpuTwiceAndCallsThatDoNotMatch) {
  Ring ring(2);
  ring.fake().expected_misuses = 2;
  NcclUniqueId id;
  ASSERT_EQ(FakeNccl::library().api().get_unique_id(&id), 0);
  ring.on_every_rank([&](int rank, const CudaDevice& device, CudaStream& stream) {
    if (rank == 0) {
      NcclCommunicator first(FakeNccl::library(), id, 0, 2);
      NcclCommunicator second(FakeNccl::library(), id, 1, 2);  // on the same GPU
      EXPECT_THROW(first.settle(soon()), DeviceError);
      EXPECT_THROW(second.settle(soon()), DeviceError);
    }
    NcclCommunicator communicator(FakeNccl::library(), ring.id(), rank, ring.size());
    communicator.settle(soon());
    DeviceArray<float> array(device, Floats(4, 1.0F));
    const auto count = static_cast<std::size_t>(rank + 1);
    communicator.group(
        [&](const NcclFunctions& api, NcclHandle handle) {
          communicator.check(api.all_reduce(array.data(), array.data(), count, kFloat32, kSum, handle, stream.handle()),
                             "ncclAllReduce");
        },
        soon());
    (void)array.values(stream.handle());
    EXPECT_THROW((void)communicator.settled(), DeviceError);
  });
}

}  // namespace
}  // namespace ringtune
