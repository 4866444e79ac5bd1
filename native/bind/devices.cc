// What Python asks about GPUs, and operations on tensors there. Streams are CUstream handles as numbers.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/error.h"
#include "bind/bind.h"
#include "bind/convert.h"
#include "device/cuda_driver.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

/// Of the driver at that path (empty: the usual one): its version, the devices' names and compute capabilities (90 of
/// 9.0), and which pairs reach each other's memory. Blocks while the driver starts; throws DeviceError when there is
/// none.
AnyByName cuda_devices(const std::string& path) {
  std::string version;
  std::vector<std::string> names;
  std::vector<int> capabilities;
  std::vector<std::vector<int>> peers;
  {
    const nb::gil_scoped_release released;
    const CudaDriver& driver = CudaDriver::open(path);
    version = cuda_version_text(driver.version());
    const int count = driver.device_count();
    for (int device = 0; device < count; ++device) {
      names.push_back(driver.device_name(device));
      capabilities.push_back(driver.compute_capability(device));
      for (int peer = device + 1; peer < count; ++peer) {
        if (driver.can_access_peer(device, peer) && driver.can_access_peer(peer, device)) {
          peers.push_back({device, peer});
        }
      }
    }
  }
  AnyByName found;
  found["version"] = version;
  found["devices"] = names;
  found["capabilities"] = capabilities;
  found["peers"] = peers;
  return found;
}

/// The device whose memory that is. Throws InvalidArgument when it is none's, DeviceError without a driver.
int cuda_device_of(std::uintptr_t address, const std::string& path) {
  const std::optional<int> owner = CudaDriver::open(path).owner_of(reinterpret_cast<const void*>(address));
  if (!owner) throw InvalidArgument("the memory at " + std::to_string(address) + " is no GPU's");
  return *owner;
}

}  // namespace

void add_cuda(nb::module_& module) {
  module.def("cuda_devices", &cuda_devices, nb::arg("driver") = "");
  module.def("cuda_device_of", &cuda_device_of, nb::arg("address"), nb::arg("driver") = "");
}

void add_devices(nb::class_<Runtime>& runtime) {
  runtime.def("uses_nccl", &Runtime::uses_nccl)
      .def(
          "join_stream",
          [](Runtime& self, Ticket ticket, std::uintptr_t stream) { self.join_stream(ticket, stream_at(stream)); },
          nb::arg("ticket"), nb::arg("stream"))
      .def(
          "gathered_shape", [](Runtime& self, Ticket ticket) { return self.gathered_on_device(ticket).shape; },
          nb::arg("ticket"))
      .def(
          "gathered_splits", [](Runtime& self, Ticket ticket) { return self.gathered_on_device(ticket).splits; },
          nb::arg("ticket"))
      .def(
          "deliver",
          [](Runtime& self, Ticket ticket, std::uintptr_t address, std::uintptr_t stream) {
            self.deliver(ticket, reinterpret_cast<void*>(address), stream_at(stream));
          },
          nb::arg("ticket"), nb::arg("address"), nb::arg("stream"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace ringtune::bind
