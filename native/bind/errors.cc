#include "base/error.h"
#include "bind/bind.h"

namespace nb = nanobind;

namespace ringtune::bind {

// Derived classes are registered after their base: nanobind asks the newest translator first.
void add_errors(nb::module_& module) {
  const nb::exception<Error> base(module, "Error", PyExc_RuntimeError);
  nb::exception<Timeout>(module, "Timeout", base.ptr());
  const nb::exception<Mismatch> mismatch(module, "Mismatch", base.ptr());
  nb::exception<SomeAbsent>(module, "SomeAbsent", mismatch.ptr());
  nb::exception<SomeSparse>(module, "SomeSparse", mismatch.ptr());
  nb::exception<InvalidArgument>(module, "InvalidArgument", base.ptr());
  nb::exception<Protocol>(module, "Protocol", base.ptr());
  nb::exception<ShutDown>(module, "ShutDown", base.ptr());
  nb::exception<TraceIo>(module, "TraceIo", base.ptr());
  nb::exception<DeviceError>(module, "DeviceError", base.ptr());
  nb::exception<InvariantError>(module, "InvariantError", base.ptr());
  nb::exception<PeerLost>(module, "PeerLost", base.ptr());
}

}  // namespace ringtune::bind
