#include "runtime/runtime.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bind/bind.h"
#include "bind/convert.h"
#include "bind/unlocked.h"
#include "runtime/ticket_table.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

Ticket allreduce(Runtime& self, std::string_view name, std::uintptr_t input, std::uintptr_t output, const Shape& shape,
                 int dtype, int op, double prescale, double postscale, std::string_view group, std::uint32_t group_size,
                 std::uint32_t process_set, int wire, int device, std::uintptr_t stream, std::int64_t timeout_ns) {
  self.steps().submitted(CollectiveKind::kAllreduce, process_set, name, elements_of(shape));
  const AllreduceCall call{
      name,  to_dtype(dtype), to_reduce_op(op),  process_set,          prescale,  postscale, group, group_size,
      shape, input_at(input), output_at(output), to_wire(wire, dtype), timeout_ns};
  if (device < 0) return self.submit(call);
  return self.submit(Submission{request_of(call), call.input, call.output, {}, to_place(device, stream)});
}

IntByName to_dict(const Knobs& knobs) {
  IntByName values;
  each_knob(knobs, [&](const char* name, const auto& knob, std::int64_t, std::int64_t) {
    values[name] = static_cast<std::int64_t>(knob);
  });
  return values;
}

/// Takes values by name over a setting; `knobs_version` is no knob and left out.
Knobs taken_over(Knobs knobs, const IntByName& values) {
  for (const auto& [key, value] : values) {
    const auto name = nb::cast<std::string>(key);
    if (name != "knobs_version") set_knob(knobs, name, nb::cast<std::int64_t>(value));
  }
  return knobs;
}

using Rule = std::tuple<int, std::uint32_t, std::uint64_t, int>;

std::vector<Rule> rules_of(const RuntimeOptions& options) {
  std::vector<Rule> rows;
  for (const AlgorithmRule& rule : options.algorithms.rules()) {
    rows.emplace_back(static_cast<int>(rule.links), rule.max_ranks, rule.max_bytes, static_cast<int>(rule.algorithm));
  }
  return rows;
}

void set_rules(RuntimeOptions& options, const std::vector<Rule>& rows) {
  std::vector<AlgorithmRule> rules;
  for (const auto& [links, max_ranks, max_bytes, algorithm] : rows) {
    if (links < 0 || links > 1) throw InvalidArgument("links of a rule must be 0 (memory) or 1 (network)");
    if (algorithm < 1 || algorithm >= kAlgorithmCount) throw InvalidArgument("a rule names no known algorithm");
    rules.push_back({static_cast<LinkClass>(links), max_ranks, max_bytes, static_cast<Algorithm>(algorithm)});
  }
  options.algorithms = AlgorithmTable(std::move(rules));
}

IntByName to_dict(const CounterValues& values) {
  IntByName fields;
  fields["bytes"] = values.bytes;
  fields["collectives"] = values.collectives;
  fields["batches"] = values.batches;
  fields["negotiate_ns"] = values.negotiate_ns;
  fields["communicate_ns"] = values.communicate_ns;
  fields["copy_ns"] = values.copy_ns;
  fields["wait_ns"] = values.wait_ns;
  fields["control_messages"] = values.control_messages;
  fields["control_bytes"] = values.control_bytes;
  return fields;
}

using TrafficByKind = nb::typed<nb::dict, nb::str, std::tuple<std::uint64_t, std::uint64_t>>;

/// By name of the kind: how many operations, and their bytes.
TrafficByKind traffic(const Runtime& self) {
  TrafficByKind kinds;
  for (std::size_t kind = 0; kind < kCollectiveKinds; ++kind) {
    const TrafficValues values = self.traffic(static_cast<CollectiveKind>(kind));
    if (values.operations == 0) continue;
    const std::string name(name_of(static_cast<CollectiveKind>(kind)));
    kinds[name.c_str()] = nb::make_tuple(values.operations, values.bytes);
  }
  return kinds;
}

IntByName end_step(Runtime& self, bool told) { return fields_of(self.end_step(told)); }

/// Calls `ended` where a step ends that nobody marks; None ends that.
void watch_steps(Runtime& self, const nb::object& ended) {
  if (ended.is_none()) return self.steps().end();
  self.steps().begin([ended] {
    try {
      ended();
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(ended);
    }
  });
}

/// For calls on threads of the runtime, which take the GIL.
std::shared_ptr<nb::object> held_by_runtime(nb::object object) {
  const auto drop = [](nb::object* held) {
    if (!Py_IsInitialized()) return;  // the interpreter has gone, and all of its objects with it
    const nb::gil_scoped_acquire acquired;
    delete held;
  };
  return {new nb::object(std::move(object)), drop};
}

Carrier carrier_by(nb::object take) {
  return [held = held_by_runtime(std::move(take))](int peer, std::uint32_t number, int socket) {
    const nb::gil_scoped_acquire acquired;
    try {
      (*held)(peer, number, socket);
    } catch (const nb::python_error& error) {
      throw Error(nb::str(error.value()).c_str());
    }
  };
}

KernelsForGpu kernels_by(nb::object ask) {
  return [held = held_by_runtime(std::move(ask))](int capability) {
    const nb::gil_scoped_acquire acquired;
    try {
      const auto cubin = nb::cast<nb::bytes>((*held)(capability));
      const auto* const begin = static_cast<const std::byte*>(cubin.data());
      return std::vector<std::byte>(begin, begin + cubin.size());
    } catch (const nb::python_error& error) {
      throw DeviceError(nb::str(error.value()).c_str());
    }
  };
}

void add_options(nb::module_& module) {
  nb::class_<RuntimeOptions>(module, "RuntimeOptions",
                             "How a rank joins its job. Times in nanoseconds, sizes in bytes.")
      .def(nb::init<>())
      .def_rw("rank", &RuntimeOptions::rank)
      .def_rw("size", &RuntimeOptions::size)
      .def_rw("store_host", &RuntimeOptions::store_host)
      .def_rw("store_port", &RuntimeOptions::store_port)
      .def_rw("secret", &RuntimeOptions::secret)
      .def_rw("job", &RuntimeOptions::job)
      .def_rw("host", &RuntimeOptions::host)
      .def_rw("bind_address", &RuntimeOptions::bind_address)
      .def_prop_rw(
          "transport", [](const RuntimeOptions& o) { return static_cast<int>(o.transport); },
          [](RuntimeOptions& o, int value) {
            if (value < 0 || value > 3)
              throw InvalidArgument("transport must be 0 (auto), 1 (shm), 2 (tcp) or 3 (mpi)");
            o.transport = static_cast<TransportChoice>(value);
          })
      .def(
          "set_generation",
          [](RuntimeOptions& o, std::uint32_t number, const std::string& job, const std::vector<int>& ranks,
             std::uint32_t first_step, std::uint32_t first_batch, std::int64_t clock_offset_ns,
             std::int64_t clock_error_ns) {
            o.generation = {number, job, ranks, first_step, first_batch, clock_offset_ns, clock_error_ns};
          },
          nb::arg("number"), nb::arg("job"), nb::arg("ranks"), nb::arg("first_step") = 0, nb::arg("first_batch") = 0,
          nb::arg("clock_offset_ns") = 0, nb::arg("clock_error_ns") = 0,
          "Of an elastic job: under which numbers its ranks, steps and batches stand in the timeline. A negative "
          "error: "
          "rank 0's clock is not known against the timeline's.")
      .def(
          "set_carrier", [](RuntimeOptions& o, nb::object take) { o.carrier = carrier_by(std::move(take)); },
          nb::arg("take"),
          nb::sig("def set_carrier(self, take: collections.abc.Callable[[int, int, int], None]) -> None"),
          "For transport mpi: takes peer, number and an end of a socket, which it owns, for each link.")
      .def_rw("tcp_congestion", &RuntimeOptions::tcp_congestion)
      .def_rw("sockets_per_peer", &RuntimeOptions::sockets_per_peer)
      .def_rw("connect_timeout_ns", &RuntimeOptions::connect_timeout_ns)
      .def_rw("silence_ns", &RuntimeOptions::silence_ns)
      .def_rw("idle_timeout_ns", &RuntimeOptions::idle_timeout_ns)
      .def_prop_rw(
          "knobs", [](const RuntimeOptions& o) { return to_dict(o.knobs); },
          [](RuntimeOptions& o, const IntByName& values) { o.knobs = taken_over(o.knobs, values); })
      .def_prop_rw("algorithm_rules", &rules_of, &set_rules, "Rows (links, max_ranks, max_bytes, algorithm) in order.")
      .def_rw("stall_warning_ns", &RuntimeOptions::stall_warning_ns)
      .def_rw("stall_shutdown_ns", &RuntimeOptions::stall_shutdown_ns)
      .def_rw("thread_affinity", &RuntimeOptions::thread_affinity)
      .def_prop_rw(
          "overlap", [](const RuntimeOptions& o) { return static_cast<int>(o.overlap); },
          [](RuntimeOptions& o, int value) { o.overlap = static_cast<Overlap>(value); })
      .def_rw("cuda_driver", &RuntimeOptions::cuda_driver)
      .def_prop_rw(
          "gpu_data_path", [](const RuntimeOptions& o) { return static_cast<int>(o.gpu_data_path); },
          [](RuntimeOptions& o, int value) { o.gpu_data_path = static_cast<GpuDataPath>(value); })
      .def_rw("nccl_libraries", &RuntimeOptions::nccl_libraries)
      .def_rw("gpu_part_bytes", &RuntimeOptions::gpu_part_bytes)
      .def(
          "set_gpu_kernels", [](RuntimeOptions& o, nb::object ask) { o.gpu_kernels = kernels_by(std::move(ask)); },
          nb::arg("ask"), nb::sig("def set_gpu_kernels(self, ask: collections.abc.Callable[[int], bytes]) -> None"),
          "`ask(capability)` returns the kernels' cubin; called when a ring between GPUs needs them.")
      .def_rw("log_level", &RuntimeOptions::log_level);
}

void add_allreduce_and_tickets(nb::class_<Runtime>& runtime) {
  runtime
      .def("allreduce", &allreduce, nb::arg("name"), nb::arg("input"), nb::arg("output"), nb::arg("shape"),
           nb::arg("dtype"), nb::arg("op"), nb::arg("prescale"), nb::arg("postscale"), nb::arg("group") = "",
           nb::arg("group_size") = 0, nb::arg("process_set") = 0, nb::arg("wire") = -1, nb::arg("device") = -1,
           nb::arg("stream") = 0, nb::arg("timeout_ns") = 0)
      .def("poll", &Runtime::poll, nb::arg("ticket"))
      .def_static("begin_blocking", &Runtime::begin_blocking)
      .def("end_blocking", &Runtime::end_blocking)
      .def("set_compute_threads", &Runtime::set_compute_threads, nb::arg("threads"))
      .def(
          "wait",
          [](Runtime& self, Ticket ticket, std::int64_t timeout_ns) {
            self.steps().waited();
            return self.wait(ticket, timeout_ns < 0 ? Deadline::never() : Deadline::after(timeout_ns));
          },
          nb::arg("ticket"), nb::arg("timeout_ns"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "awaited",
          [](Runtime& self, Ticket ticket, std::int64_t timeout_ns) {
            return self.awaited(ticket, Deadline::after(timeout_ns));
          },
          nb::arg("ticket"), nb::arg("timeout_ns"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "attend",
          [](Runtime& self, Ticket ticket, std::int64_t timeout_ns) {
            return self.attend(ticket, Deadline::after(timeout_ns));
          },
          nb::arg("ticket"), nb::arg("timeout_ns"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "output_of",
          [](Runtime& self, Ticket ticket) { return reinterpret_cast<std::uintptr_t>(self.operation(ticket)->output); },
          nb::arg("ticket"))
      .def("release", &Runtime::release, nb::arg("ticket"));
}

struct ForeignNumbers {
  int stage;
  int kind;
  int dtype;
};

Span foreign_span(ForeignNumbers numbers, std::int64_t begin_ns, std::int64_t end_ns, std::uint64_t bytes,
                  std::uint32_t batch, std::uint16_t process_set) {
  Span span{begin_ns,
            end_ns,
            bytes,
            0,
            batch,
            0,
            0,
            static_cast<Stage>(numbers.stage),
            static_cast<std::uint8_t>(numbers.kind)};
  span.process_set = process_set;
  span.dtype = static_cast<std::uint8_t>(numbers.dtype);
  return span;
}

void add_tuning_and_tracing(nb::class_<Runtime>& runtime) {
  runtime
      .def("knobs",
           [](const Runtime& self) {
             IntByName values = to_dict(self.knobs());
             values["knobs_version"] = self.knobs_version();
             return values;
           })
      .def(
          "propose_knobs",
          [](Runtime& self, const IntByName& values) { return self.propose_knobs(taken_over(self.knobs(), values)); },
          nb::arg("knobs"))
      .def("end_step", &end_step, nb::arg("told") = true)
      .def("watch_steps", &watch_steps, nb::arg("ended").none(),
           nb::sig("def watch_steps(self, ended: collections.abc.Callable[[], None] | None) -> None"))
      .def("counters", [](const Runtime& self) { return to_dict(self.counters()); })
      .def("traffic", &traffic)
      .def_prop_ro("stalls", &Runtime::stalls)
      .def_prop_ro("reported_stall", [](const Runtime& self) { return to_tuples(self.reported_stall()); })
      .def_prop_ro("open_operations", &Runtime::open_operations)
      .def(
          "start_timeline",
          [](Runtime& self, const std::string& path, bool mark_cycles, bool pieces, bool gzip,
             std::uint64_t rotate_bytes, std::uint32_t first_file, const std::string& shown) {
            self.start_timeline({path, mark_cycles, pieces, gzip, rotate_bytes, first_file, shown});
          },
          nb::arg("path"), nb::arg("mark_cycles") = false, nb::arg("pieces") = false, nb::arg("gzip") = false,
          nb::arg("rotate_bytes") = 0, nb::arg("first_file") = 0, nb::arg("shown") = "",
          nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro(
          "progress",
          [](const Runtime& self) {
            const GenerationProgress found = self.progress();
            return std::tuple(found.step, found.batch, found.clock_offset_ns, found.clock_error_ns);
          },
          "Step and last batch in the job's timeline, that clock minus this one and the error (-1: not known).")
      .def("stop_timeline", &Runtime::stop_timeline, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("recording", [](Runtime& self) { return self.tracer().recording(); })
      .def("record_range", &Runtime::record_range, nb::arg("name"), nb::arg("begin_ns"), nb::arg("end_ns"))
      .def(
          "record_foreign",
          [](Runtime& self, int stage, int kind, const std::string& name, std::int64_t begin_ns, std::int64_t end_ns,
             std::uint64_t bytes, std::uint32_t batch, std::uint16_t process_set, int dtype) {
            self.record_foreign(name, foreign_span({stage, kind, dtype}, begin_ns, end_ns, bytes, batch, process_set));
          },
          nb::arg("stage"), nb::arg("kind"), nb::arg("name"), nb::arg("begin_ns"), nb::arg("end_ns"),
          nb::arg("bytes") = 0, nb::arg("batch") = 0, nb::arg("process_set") = 0, nb::arg("dtype") = Span::kNoDType)
      .def(
          "begin_foreign",
          [](Runtime& self, int stage, int kind, const std::string& name, std::int64_t begin_ns, std::uint64_t bytes,
             std::uint32_t batch, std::uint16_t process_set, int dtype, int device, std::uintptr_t stream) {
            Span span = foreign_span({stage, kind, dtype}, begin_ns, begin_ns, bytes, batch, process_set);
            span.peer = device;
            return self.begin_foreign(name, span, reinterpret_cast<CudaStreamHandle>(stream));
          },
          nb::arg("stage"), nb::arg("kind"), nb::arg("name"), nb::arg("begin_ns"), nb::arg("bytes"), nb::arg("batch"),
          nb::arg("process_set"), nb::arg("dtype"), nb::arg("device"), nb::arg("stream"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "end_foreign",
          [](Runtime& self, std::uint64_t work, std::uintptr_t stream) {
            self.end_foreign(work, reinterpret_cast<CudaStreamHandle>(stream));
          },
          nb::arg("work"), nb::arg("stream"), nb::call_guard<nb::gil_scoped_release>())
      .def("drop_foreign", &Runtime::drop_foreign, nb::arg("work"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

IntByName fields_of(const StepStats& stats) {
  IntByName fields = to_dict(stats.values);
  fields["step"] = stats.step;
  fields["knobs_version"] = stats.knobs_version;
  fields["begin_ns"] = stats.begin_ns;
  fields["end_ns"] = stats.end_ns;
  fields["world_step"] = stats.world_step;
  fields["world_step_ns"] = stats.world_step_ns;
  return fields;
}

void add_runtime(nb::module_& module) {
  add_options(module);
  nb::class_<Runtime> runtime(module, "Runtime", "The runtime of one rank.");
  runtime
      .def(
          "__init__",
          [](Runtime* self, const RuntimeOptions& options) {
            const RuntimeOptions copy = options;
            const Unlocked released;
            new (self) Runtime(copy);
          },
          nb::arg("options"))
      .def(
          "__init__",
          [](Runtime* self, const RuntimeOptions& options, const Runtime& job, std::uint16_t number,
             const std::string& label, const std::vector<int>& members) {
            const RuntimeOptions copy = options;
            const Unlocked released;
            new (self) Runtime(copy, job, {number, label, members});
          },
          nb::arg("options"), nb::arg("job"), nb::arg("number"), nb::arg("label"), nb::arg("members"),
          "The runtime of a group of ranks, which records in the timeline of the job's.")
      .def_prop_ro("rank", &Runtime::rank)
      .def_prop_ro("size", &Runtime::size)
      .def_prop_ro("hosts", &Runtime::hosts)
      .def_prop_ro("transports", &Runtime::transports)
      .def_prop_ro("local_rank", [](const Runtime& self) { return self.topology().local_rank; })
      .def_prop_ro("local_size", [](const Runtime& self) { return self.topology().local_size; })
      .def_prop_ro("cross_rank", [](const Runtime& self) { return self.topology().cross_rank; })
      .def_prop_ro("cross_size", [](const Runtime& self) { return self.topology().cross_size; })
      .def_prop_ro("homogeneous", [](const Runtime& self) { return self.topology().homogeneous; })
      .def("shutdown", &Runtime::shutdown, nb::arg("timeout_ns"), nb::arg("how") = "", nb::arg("failed") = false,
           nb::call_guard<nb::gil_scoped_release>());
  add_allreduce_and_tickets(runtime);
  add_collectives(runtime);
  add_devices(runtime);
  add_frameworks(module, runtime);
  add_tuning_and_tracing(runtime);
}

}  // namespace ringtune::bind
