// Every collective but allreduce.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "base/result_memory.h"
#include "bind/bind.h"
#include "bind/convert.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

using Owned = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

/// A tensor as Python describes it; the binding's functions take it apart.
Submission submission_of(CollectiveKind kind, std::string name, Shape shape, int dtype) {
  Submission submission;
  submission.request.name = std::move(name);
  submission.request.kind = kind;
  submission.request.dtype = to_dtype(dtype);
  submission.request.shape = std::move(shape);
  return submission;
}

/// Of a reduction, which others may have to go with: what they must agree about.
Submission reduction_of(CollectiveKind kind, std::string name, Shape shape, int dtype, int op, double prescale,
                        double postscale, std::string group, std::uint32_t group_size, std::uint32_t process_set) {
  Submission submission = submission_of(kind, std::move(name), std::move(shape), dtype);
  Request& request = submission.request;
  request.op = to_reduce_op(op);
  request.prescale = prescale;
  request.postscale = postscale;
  request.group = std::move(group);
  request.group_size = group_size;
  request.process_set = process_set;
  return submission;
}

Ticket submit(Runtime& self, Submission submission) {
  const Request& request = submission.request;
  self.steps().submitted(request.kind, request.process_set, request.name, elements_of(request.shape));
  return self.submit(std::move(submission));
}

Ticket allgather(Runtime& self, std::string name, std::uintptr_t input, Shape shape, int dtype,
                 std::uint32_t process_set, int device, std::uintptr_t stream, std::int64_t timeout_ns) {
  Submission submission = submission_of(CollectiveKind::kAllgather, std::move(name), std::move(shape), dtype);
  submission.device = to_place(device, stream);
  submission.input = input_at(input);
  submission.request.process_set = process_set;
  submission.request.timeout_ns = timeout_ns;
  return submit(self, std::move(submission));
}

Ticket broadcast(Runtime& self, std::string name, std::uintptr_t input, std::uintptr_t output, Shape shape, int dtype,
                 int root, std::uint32_t process_set, int device, std::uintptr_t stream, std::int64_t timeout_ns) {
  Submission submission = submission_of(CollectiveKind::kBroadcast, std::move(name), std::move(shape), dtype);
  submission.device = to_place(device, stream);
  submission.input = input_at(input);
  submission.output = output_at(output);
  submission.request.root = root;
  submission.request.process_set = process_set;
  submission.request.timeout_ns = timeout_ns;
  return submit(self, std::move(submission));
}

Ticket barrier(Runtime& self, std::string name, std::uint32_t process_set, std::int64_t timeout_ns) {
  Submission submission =
      submission_of(CollectiveKind::kBarrier, std::move(name), {0}, static_cast<int>(DType::kUint8));
  submission.request.process_set = process_set;
  submission.request.timeout_ns = timeout_ns;
  return submit(self, std::move(submission));
}

Ticket alltoall(Runtime& self, std::string name, std::uintptr_t input, Shape shape, int dtype, Shape splits,
                std::uint32_t process_set, int device, std::uintptr_t stream, std::int64_t timeout_ns) {
  Submission submission = submission_of(CollectiveKind::kAlltoall, std::move(name), std::move(shape), dtype);
  submission.device = to_place(device, stream);
  submission.input = input_at(input);
  submission.splits = std::move(splits);
  submission.request.process_set = process_set;
  submission.request.timeout_ns = timeout_ns;
  return submit(self, std::move(submission));
}

Ticket reducescatter(Runtime& self, std::string name, std::uintptr_t input, std::uintptr_t output, Shape shape,
                     int dtype, int op, double prescale, double postscale, std::string group, std::uint32_t group_size,
                     std::uint32_t process_set, int device, std::uintptr_t stream, std::int64_t timeout_ns) {
  Submission submission = reduction_of(CollectiveKind::kReducescatter, std::move(name), std::move(shape), dtype, op,
                                       prescale, postscale, std::move(group), group_size, process_set);
  submission.device = to_place(device, stream);
  submission.input = input_at(input);
  submission.output = output_at(output);
  submission.request.timeout_ns = timeout_ns;
  return submit(self, std::move(submission));
}

/// Reports that this rank has no gradient of that name, or a sparse one: an empty allreduce in its place.
Ticket report_gradient(Runtime& self, std::string name, bool sparse, int dtype, int op, double prescale,
                       double postscale, std::string group, std::uint32_t group_size, std::uint32_t process_set,
                       int wire) {
  Submission submission = reduction_of(CollectiveKind::kAllreduce, std::move(name), {0}, dtype, op, prescale, postscale,
                                       std::move(group), group_size, process_set);
  submission.request.contribution = sparse ? Contribution::kSparse : Contribution::kNone;
  submission.request.wire = to_wire(wire, dtype);
  return submit(self, std::move(submission));
}

OperationPtr finished(Runtime& self, Ticket ticket) {
  const OperationPtr operation = self.operation(ticket);
  const CollectiveKind kind = operation->request().kind;
  if ((kind != CollectiveKind::kAllgather && kind != CollectiveKind::kAlltoall) || !operation->done()) {
    throw InvalidArgument("ticket " + std::to_string(ticket) + " is no finished allgather or alltoall");
  }
  return operation;
}

/// The bytes as an array that owns them.
Owned as_array(ResultMemory memory) {
  auto* const bytes = new ResultMemory(std::move(memory));
  nb::capsule owner(bytes, [](void* found) noexcept { delete static_cast<ResultMemory*>(found); });
  return {bytes->data(), {bytes->size()}, owner};
}

nb::tuple take_gathered(Runtime& self, Ticket ticket) {
  const OperationPtr operation = finished(self, ticket);
  return nb::make_tuple(nb::tuple(nb::cast(operation->gathered_shape)), as_array(std::move(operation->gathered)));
}

}  // namespace

void add_collectives(nb::class_<Runtime>& runtime) {
  runtime
      .def("allgather", &allgather, nb::arg("name"), nb::arg("input"), nb::arg("shape"), nb::arg("dtype"),
           nb::arg("process_set") = 0, nb::arg("device") = -1, nb::arg("stream") = 0, nb::arg("timeout_ns") = 0)
      .def("broadcast", &broadcast, nb::arg("name"), nb::arg("input"), nb::arg("output"), nb::arg("shape"),
           nb::arg("dtype"), nb::arg("root"), nb::arg("process_set") = 0, nb::arg("device") = -1, nb::arg("stream") = 0,
           nb::arg("timeout_ns") = 0)
      .def("barrier", &barrier, nb::arg("name"), nb::arg("process_set") = 0, nb::arg("timeout_ns") = 0)
      .def("alltoall", &alltoall, nb::arg("name"), nb::arg("input"), nb::arg("shape"), nb::arg("dtype"),
           nb::arg("splits"), nb::arg("process_set") = 0, nb::arg("device") = -1, nb::arg("stream") = 0,
           nb::arg("timeout_ns") = 0)
      .def("reducescatter", &reducescatter, nb::arg("name"), nb::arg("input"), nb::arg("output"), nb::arg("shape"),
           nb::arg("dtype"), nb::arg("op"), nb::arg("prescale"), nb::arg("postscale"), nb::arg("group") = "",
           nb::arg("group_size") = 0, nb::arg("process_set") = 0, nb::arg("device") = -1, nb::arg("stream") = 0,
           nb::arg("timeout_ns") = 0)
      .def("report_gradient", &report_gradient, nb::arg("name"), nb::arg("sparse"), nb::arg("dtype"), nb::arg("op"),
           nb::arg("prescale"), nb::arg("postscale"), nb::arg("group") = "", nb::arg("group_size") = 0,
           nb::arg("process_set") = 0, nb::arg("wire") = -1)
      .def_static(
          "result_memory", [](std::size_t bytes) { return as_array(ResultMemory(bytes)); }, nb::arg("bytes"))
      .def("take_gathered", &take_gathered, nb::arg("ticket"),
           nb::sig("def take_gathered(self, ticket: int)"
                   " -> tuple[tuple[int, ...], numpy.typing.NDArray[numpy.uint8]]"))
      .def("process_sets", &Runtime::process_sets)
      .def("add_process_set", &Runtime::add_process_set, nb::arg("ranks"))
      .def("remove_process_set", &Runtime::remove_process_set, nb::arg("number"))
      .def("join", &Runtime::join, nb::arg("name"))
      .def(
          "decided_number", [](Runtime& self, Ticket ticket) { return self.operation(ticket)->number; },
          nb::arg("ticket"))
      .def(
          "received_splits", [](Runtime& self, Ticket ticket) { return finished(self, ticket)->splits; },
          nb::arg("ticket"));
}

}  // namespace ringtune::bind
