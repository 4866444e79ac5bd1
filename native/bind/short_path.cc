#include "bind/short_path.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/sleep.h"
#include "bind/bind.h"
#include "bind/convert.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

constexpr std::size_t kMostRepeated = 65536;
// What is reduced while the interpreter's lock is held: a few microseconds. Letting go of it costs 80 ns.
constexpr std::size_t kHeldBytes = 64 << 10;
constexpr std::uint32_t kExchangeMajor = 1;
constexpr int kOnCpu = 1;  // kDLCPU

/// DLPackExchangeAPI of dlpack.h, version 1.
struct Exchange {
  std::uint32_t major;
  std::uint32_t minor;
  const Exchange* older;
  std::array<void*, 3> others;
  int (*view)(void* tensor, nb::dlpack::dltensor* found);
  void* stream;
};

/// Lets go of the interpreter's lock: at once, or when the thread goes to sleep.
class LockOutOfSleep final : SleepObserver {
 public:
  explicit LockOutOfSleep(bool at_once) noexcept {
    if (at_once) {
      before_sleep();
    } else {
      observe_sleep(this);
    }
  }
  ~LockOutOfSleep() {
    observe_sleep(nullptr);
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  LockOutOfSleep(const LockOutOfSleep&) = delete;
  LockOutOfSleep& operator=(const LockOutOfSleep&) = delete;

 private:
  void before_sleep() noexcept override { state_ = PyEval_SaveThread(); }

  PyThreadState* state_ = nullptr;
};

bool contiguous(const nb::dlpack::dltensor& tensor) noexcept {
  if (tensor.strides == nullptr) return true;
  std::int64_t step = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != step) return false;
    step *= tensor.shape[i];
  }
  return true;
}

std::byte* address_of(const nb::dlpack::dltensor& tensor) noexcept {
  return static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

/// Whether two arguments say the same. Cheap: numbers that are written otherwise count as different.
bool alike(PyObject* a, PyObject* b) noexcept {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) return PyFloat_AS_DOUBLE(a) == PyFloat_AS_DOUBLE(b);
  return PyLong_CheckExact(a) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

/// A set that was removed and registered anew has another number.
bool is_set(PyObject* process_set, std::uint32_t number) noexcept {
  PyObject* const found = PyObject_GetAttrString(process_set, "process_set_id");
  if (found == nullptr) PyErr_Clear();
  const bool same = found != nullptr && PyLong_CheckExact(found) && PyLong_AsLong(found) == static_cast<long>(number);
  Py_XDECREF(found);
  return same;
}

}  // namespace

Repeated::Repeated(nb::object runtime, std::string_view wire, const nb::dlpack::dltensor& tensor, const How& how,
                   nb::tuple given, const Group& group)
    : runtime_(std::move(runtime)),
      native_(nb::cast<Runtime&>(runtime_)),
      given_(std::move(given)),
      dtype_(tensor.dtype),
      shape_(tensor.shape, tensor.shape + tensor.ndim) {
  const auto& [dtype, op, prescale, postscale, process_set, wire_dtype] = how;
  AllreduceCall call;
  call.name = wire;
  call.dtype = to_dtype(dtype);
  call.op = to_reduce_op(op);
  call.prescale = prescale;
  call.postscale = postscale;
  call.process_set = process_set;
  call.shape = shape_;
  call.input = call.output = address_of(tensor);
  call.wire = to_wire(wire_dtype, dtype);
  std::tie(call.group, call.group_size) = group;
  request_ = native_.keep(call);
  const Request& request = request_.prepared->request;
  step_token_ = StepWatch::token_of(request.kind, request.process_set, request.name, request_.prepared->count);
}

Repeated::~Repeated() { native_.drop(request_); }

bool Repeated::fits(const nb::dlpack::dltensor& tensor) const noexcept {
  return tensor.device.device_type == kOnCpu && tensor.dtype.code == dtype_.code && tensor.dtype.bits == dtype_.bits &&
         tensor.dtype.lanes == dtype_.lanes && static_cast<std::size_t>(tensor.ndim) == shape_.size() &&
         std::equal(shape_.begin(), shape_.end(), tensor.shape) && contiguous(tensor) && tensor.data != nullptr;
}

bool Repeated::fits(const Arguments& arguments, const nb::tuple& defaults) const noexcept {
  for (std::size_t i = kOp; i < kArguments; ++i) {
    const auto index = static_cast<Py_ssize_t>(i - kOp);
    PyObject* const wanted = PyTuple_GET_ITEM(given_.ptr(), index);
    PyObject* const given = arguments[i] != nullptr ? arguments[i] : PyTuple_GET_ITEM(defaults.ptr(), index);
    if (!alike(given, wanted)) return false;
  }
  const std::uint32_t number = request_.prepared->request.process_set;
  return number == 0 || is_set(PyTuple_GET_ITEM(given_.ptr(), kProcessSet - kOp), number);
}

ShortPath::ShortPath(const nb::capsule& exchange, nb::tuple types, nb::tuple defaults, std::int64_t slice_ns)
    : types_(std::move(types)), defaults_(std::move(defaults)), slice_ns_(slice_ns) {
  const auto* api = static_cast<const Exchange*>(exchange.data("dlpack_exchange_api"));
  while (api != nullptr && api->major != kExchangeMajor) api = api->older;
  if (api == nullptr || api->view == nullptr) throw InvalidArgument("these tensors cannot be looked at from C");
  exchange_ = api->view;
  constexpr std::array<const char*, kArguments> names{"tensor",          "average",          "name",       "op",
                                                      "prescale_factor", "postscale_factor", "process_set"};
  for (std::size_t i = 0; i < kArguments; ++i) names_[i] = nb::steal<nb::str>(PyUnicode_InternFromString(names[i]));
  tensors_name_ = nb::steal<nb::str>(PyUnicode_InternFromString("tensors"));
}

bool ShortPath::takes(PyObject* tensor) const noexcept {
  // Exactly these: what a subclass makes of an operation is its own affair.
  const auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types_.ptr()); ++i) {
    if (PyTuple_GET_ITEM(types_.ptr(), i) == type) return true;
  }
  return false;
}

std::optional<nb::dlpack::dltensor> ShortPath::view(PyObject* tensor) const noexcept {
  if (!takes(tensor)) return std::nullopt;
  nb::dlpack::dltensor found{};
  if (exchange_(tensor, &found) == 0) return found;
  PyErr_Clear();  // sparse, without memory, ...: the Python function says so in its own words
  return std::nullopt;
}

std::unique_ptr<Repeated> ShortPath::make(const nb::object& tensor, const nb::object& runtime, const std::string& wire,
                                          const Repeated::How& how, nb::tuple given,
                                          const Repeated::Group& group) const {
  const std::optional<nb::dlpack::dltensor> found = view(tensor.ptr());
  if (!found || !contiguous(*found) || found->data == nullptr || found->device.device_type != kOnCpu) return nullptr;
  return std::make_unique<Repeated>(runtime, wire, *found, how, std::move(given), group);
}

void ShortPath::remember_alike(const nb::str& key, const nb::object& tensor, const nb::object& runtime,
                               const std::string& wire, const Repeated::How& how) {
  if (alike_.size() >= kMostRepeated) return;
  std::unique_ptr<Repeated> repeated = make(tensor, runtime, wire, how, nb::tuple());
  if (repeated != nullptr) alike_[key] = nb::cast(std::move(repeated));
}

Ticket ShortPath::submit_alike(const nb::str& key, nb::handle tensor) const {
  const nb::object entry = nb::borrow(PyDict_GetItemWithError(alike_.ptr(), key.ptr()));
  if (!entry.is_valid()) return 0;
  const std::optional<nb::dlpack::dltensor> found = view(tensor.ptr());
  const auto& repeated = *nb::inst_ptr<Repeated>(entry);
  if (!found || !repeated.fits(*found)) return 0;
  repeated.notice();
  return repeated.submit(address_of(*found));
}

void ShortPath::remember(const nb::str& name, const nb::object& tensor, const nb::object& runtime,
                         const std::string& wire, const nb::tuple& words) {
  if (repeated_.size() >= kMostRepeated) return;
  const auto how = nb::cast<Repeated::How>(words[0]);
  std::unique_ptr<Repeated> repeated = make(tensor, runtime, wire, how, nb::tuple(words[1]));
  if (repeated != nullptr) repeated_[name] = nb::cast(std::move(repeated));
}

void ShortPath::remember_group(const nb::str& name, const nb::sequence& tensors, const nb::object& runtime,
                               const std::vector<std::string>& wires, const std::vector<Repeated::How>& hows,
                               const nb::tuple& given, const std::string& group) {
  if (groups_.size() * wires.size() >= kMostRepeated) return;
  RepeatedGroup made;
  for (std::size_t i = 0; i < wires.size(); ++i) {
    const Repeated::Group member{group, static_cast<std::uint32_t>(wires.size())};
    made.members.push_back(make(nb::object(tensors[i]), runtime, wires[i], hows[i], given, member));
    if (made.members.back() == nullptr) return;
  }
  groups_[name] = nb::cast(std::move(made));
}

void ShortPath::clear() {
  repeated_.clear();
  groups_.clear();
  alike_.clear();
  pending_.clear();
  runtime_.reset();
}

bool ShortPath::read(PyObject* const* args, std::size_t count, PyObject* keywords, Arguments& found,
                     bool group) const noexcept {
  if (count > kArguments) return false;
  found.fill(nullptr);
  std::copy_n(args, count, found.begin());
  const std::size_t named = keywords == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(keywords));
  for (std::size_t i = 0; i < named; ++i) {
    PyObject* const key = PyTuple_GET_ITEM(keywords, static_cast<Py_ssize_t>(i));
    const auto slot = std::find_if(names_.begin(), names_.end(), [&](const nb::str& one) {
      return (group && &one == names_.data() ? tensors_name_ : one).ptr() == key;
    });
    if (slot == names_.end()) return false;
    PyObject*& place = found[static_cast<std::size_t>(slot - names_.begin())];
    if (std::exchange(place, args[count + i]) != nullptr) return false;
  }
  return true;
}

/// What is known of a call by its name; nothing if it has none.
nb::object ShortPath::entry_of(const Arguments& arguments, const nb::dict& known) noexcept {
  PyObject* const name = arguments[kName];
  PyObject* const average = arguments[kAverage];
  if (arguments[kTensor] == nullptr || name == nullptr || !PyUnicode_CheckExact(name)) return {};
  if (average != nullptr && average != Py_None) return {};
  return nb::borrow(PyDict_GetItemWithError(known.ptr(), name));
}

std::optional<ShortPath::Found> ShortPath::find(const Arguments& arguments) const noexcept {
  nb::object entry = entry_of(arguments, repeated_);
  if (!entry.is_valid()) return std::nullopt;
  auto* const repeated = nb::inst_ptr<Repeated>(entry);
  if (!repeated->fits(arguments, defaults_)) return std::nullopt;
  const std::optional<nb::dlpack::dltensor> tensor = view(arguments[kTensor]);
  if (!tensor || !repeated->fits(*tensor)) return std::nullopt;
  return Found{std::move(entry), repeated, address_of(*tensor)};
}

/// The handle of what was submitted; of an allreduce in place the tensor itself stands for that.
nb::object ShortPath::enter(const Repeated& repeated, Ticket ticket, PyObject* what) {
  if (!runtime_.is(repeated.runtime())) runtime_ = repeated.runtime();
  nb::object handle = nb::steal(PyLong_FromUnsignedLongLong(ticket));
  if (!handle.is_valid() || PyDict_SetItem(pending_.ptr(), handle.ptr(), what) != 0) nb::raise_python_error();
  return handle;
}

PyObject* ShortPath::now(const Arguments& arguments) {
  const std::optional<Found> found = find(arguments);
  if (!found) return nullptr;
  PyObject* const tensor = arguments[kTensor];
  Ticket ticket = 0;
  found->repeated->notice();
  {
    const LockOutOfSleep lock(found->repeated->bytes() > kHeldBytes);
    ticket = found->repeated->now(found->address, slice_ns_);
  }
  nb::inst_ptr<Runtime>(found->repeated->runtime())->steps().waited();
  return ticket == 0 ? Py_NewRef(tensor) : wait(enter(*found->repeated, ticket, tensor));
}

/// As the function behind synchronize() does when that does not know an answer: the call must not begin anew.
PyObject* ShortPath::wait(const nb::object& handle) {
  try {
    PyObject* const result = synchronize(handle.ptr());
    if (result != nullptr || PyErr_Occurred() != nullptr) return result;
  } catch (const Error&) {
    // The handle was cleared meanwhile: the function says so.
  }
  return PyObject_CallOneArg(waiter_.ptr(), handle.ptr());
}

PyObject* ShortPath::submit(const Arguments& arguments) {
  const std::optional<Found> found = find(arguments);
  if (!found) return nullptr;
  found->repeated->notice();
  const Ticket ticket = found->repeated->submit(found->address);
  return enter(*found->repeated, ticket, arguments[kTensor]).release().ptr();
}

/// Nothing when the tensors are not like those of the group.
std::vector<RepeatedAt> ShortPath::find_group(const RepeatedGroup& group, const nb::list& tensors) const {
  if (tensors.size() != group.members.size()) return {};
  std::vector<RepeatedAt> calls;
  calls.reserve(tensors.size());
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    const Repeated& member = *group.members[i];
    const auto found = view(PyList_GET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(i)));
    if (!found || !member.fits(*found)) return {};
    calls.push_back({&member.request(), address_of(*found)});
  }
  return calls;
}

PyObject* ShortPath::submit_group(const Arguments& arguments) {
  const nb::object entry = entry_of(arguments, groups_);
  if (!entry.is_valid()) return nullptr;
  const auto& group = *nb::inst_ptr<RepeatedGroup>(entry);
  const Repeated& first = *group.members.front();
  PyObject* const given = arguments[kTensor];
  if (!first.fits(arguments, defaults_) || !(PyList_CheckExact(given) || PyTuple_CheckExact(given))) return nullptr;
  PendingGroup pending;
  pending.tensors = nb::steal<nb::list>(PySequence_List(given));  // the caller's list is the caller's
  const std::vector<RepeatedAt> calls = find_group(group, pending.tensors);
  if (calls.empty()) return nullptr;
  for (const std::unique_ptr<Repeated>& member : group.members) member->notice();
  nb::inst_ptr<Runtime>(first.runtime())->submit(calls, pending.tickets);
  const Ticket ticket = pending.tickets.front();
  return enter(first, ticket, nb::cast(std::move(pending)).ptr()).release().ptr();
}

PyObject* ShortPath::finish_group(const nb::object& handle, const nb::object& pending) {
  const nb::object held = runtime_;  // another thread may clear this
  auto& runtime = *nb::inst_ptr<Runtime>(held);
  const PendingGroup& group = *nb::inst_ptr<PendingGroup>(pending);
  runtime.steps().waited();
  while (const std::optional<Ticket> open = runtime.release_if_done(group.tickets)) {
    bool done = false;
    {
      const LockOutOfSleep lock(true);
      done = runtime.wait(*open, Deadline::after(slice_ns_));  // what failed is raised by the function behind this
    }
    if (!done && PyErr_CheckSignals() != 0) return nullptr;
  }
  if (PyDict_DelItem(pending_.ptr(), handle.ptr()) != 0) PyErr_Clear();  // shut down by another thread meanwhile
  return Py_NewRef(group.tensors.ptr());
}

PyObject* ShortPath::synchronize(PyObject* handle) {
  if (!PyLong_CheckExact(handle) || !runtime_.is_valid()) return nullptr;
  const nb::object tensor = nb::borrow(PyDict_GetItemWithError(pending_.ptr(), handle));
  if (!tensor.is_valid()) return nullptr;
  if (nb::isinstance<PendingGroup>(tensor)) return finish_group(nb::borrow(handle), tensor);
  if (!takes(tensor.ptr())) return nullptr;
  const nb::object held = runtime_;  // another thread may clear this
  auto& runtime = *nb::inst_ptr<Runtime>(held);
  const Ticket ticket = PyLong_AsUnsignedLongLong(handle);
  runtime.steps().waited();
  if (!runtime.release_if_done(ticket)) {
    Finish finish = Finish::kPending;
    while (finish == Finish::kPending) {
      {
        const LockOutOfSleep lock(true);
        finish = runtime.finish(ticket, Deadline::after(slice_ns_));
      }
      if (finish == Finish::kPending && PyErr_CheckSignals() != 0) return nullptr;
    }
    if (finish == Finish::kFailed) return nullptr;
  }
  if (PyDict_DelItem(pending_.ptr(), handle) != 0) PyErr_Clear();  // shut down by another thread meanwhile
  return Py_NewRef(tensor.ptr());
}

}  // namespace ringtune::bind
