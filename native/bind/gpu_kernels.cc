// ringtune's kernels on a GPU for Python: addresses and streams are numbers, nothing is kept alive and nothing waits
// for the device.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "bind/bind.h"
#include "bind/convert.h"
#include "device/device_kernels.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

using Moves = std::vector<std::tuple<std::uint64_t, std::uint64_t, std::size_t>>;

/// What is made in the device's context goes while that is current.
template <typename Made>
void end_in(const CudaDevice& device, std::optional<Made>& made) {
  try {
    const CudaDevice::Current current(device);
    made.reset();
  } catch (const std::exception&) {
    made.reset();  // the driver is gone: its calls fail, and nobody looks at their codes
  }
}

class GpuKernels {
 public:
  GpuKernels(const nb::bytes& cubin, int device, const std::string& driver)
      : device_(CudaDriver::open(driver), device) {
    const CudaDevice::Current current(device_);
    kernels_.emplace(device_, std::span(static_cast<const std::byte*>(cubin.data()), cubin.size()));
  }
  ~GpuKernels() { end_in(device_, kernels_); }

  [[nodiscard]] const CudaDevice& device() const noexcept { return device_; }
  [[nodiscard]] DeviceKernels& kernels() noexcept { return *kernels_; }

 private:
  CudaDevice device_;
  std::optional<DeviceKernels> kernels_;
};

/// Tensors that are moved together, again and again.
class GpuBatch {
 public:
  GpuBatch(GpuKernels& kernels, const Moves& moves, const DeviceCast& cast) : kernels_(kernels), cast_(cast) {
    const bool alike = cast.from == cast.to && (cast.from != DType::kBool || cast.factor == 1.0);
    if (!alike && !(is_floating(cast.from) && is_floating(cast.to))) {
      throw InvalidArgument("no kernel makes " + std::string(name_of(cast.to)) + " of " +
                            std::string(name_of(cast.from)) + " times " + std::to_string(cast.factor));
    }
    for (const auto& [from, to, count] : moves) moves_.push_back({from, to, count});
    table_.emplace(kernels.device());
  }
  ~GpuBatch() { end_in(kernels_.device(), table_); }

  void launch(std::uintptr_t stream) {
    const CudaDevice::Current current(kernels_.device());
    kernels_.kernels().move(*table_, moves_, cast_, stream_at(stream));
  }

 private:
  GpuKernels& kernels_;  // kept alive by Python
  DeviceCast cast_;
  std::vector<DeviceMove> moves_;
  std::optional<BatchTable> table_;
};

void reduce(GpuKernels& self, const std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::size_t>& operands,
            int dtype, int op, std::uintptr_t stream) {
  const ReduceOp reduction = to_reduce_op(op);
  if (reduction == ReduceOp::kAverage || reduction == ReduceOp::kAdasum) {
    throw InvalidArgument("no kernel for " + std::string(name_of(reduction)) + ": it is composed of others");
  }
  const auto& [out, a, b, count] = operands;
  const CudaDevice::Current current(self.device());
  self.kernels().reduce({out, a, b, count}, to_dtype(dtype), reduction, stream_at(stream));
}

}  // namespace

void add_gpu_kernels(nb::module_& module) {
  nb::class_<GpuBatch>(module, "GpuBatch").def("launch", &GpuBatch::launch, nb::arg("stream"));
  nb::class_<GpuKernels>(module, "GpuKernels")
      .def(nb::init<const nb::bytes&, int, const std::string&>(), nb::arg("cubin"), nb::arg("device"),
           nb::arg("driver") = "")
      .def(
          "batch",
          [](GpuKernels& self, const Moves& moves, int from, int to, double factor) {
            return std::make_unique<GpuBatch>(self, moves, DeviceCast{to_dtype(from), to_dtype(to), factor});
          },
          nb::arg("moves"), nb::arg("from_dtype"), nb::arg("to_dtype"), nb::arg("factor") = 1.0, nb::keep_alive<0, 1>())
      .def("reduce", &reduce, nb::arg("operands"), nb::arg("dtype"), nb::arg("op"), nb::arg("stream"));
}

}  // namespace ringtune::bind
