#include "bind/fast_path.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/sleep.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

// Calls of a form that are remembered: names that count the steps never come again and must not pile up.
constexpr std::size_t kMostPersistent = 8192;

/// Calls of a form that are remembered: a name that the response cache forgets is negotiated anyway.
std::size_t most_repeated(const nb::object& runtime) {
  const std::size_t capacity = nb::cast<Runtime&>(runtime).knobs().cache_capacity;
  return capacity == 0 ? kMostPersistent : std::min(kMostPersistent, capacity);
}
// What is moved while the interpreter's lock is held: a few microseconds. Letting go of it costs 80 ns.
constexpr std::size_t kHeldBytes = 64 << 10;
constexpr std::uint32_t kExchangeMajor = 1;

/// DLPackExchangeAPI of dlpack.h, version 1.
struct Exchange {
  std::uint32_t major;
  std::uint32_t minor;
  const Exchange* older;
  std::array<void*, 3> others;
  int (*view)(void* tensor, nb::dlpack::dltensor* found);
  void* stream;
};

/// Releases the interpreter's lock: at once, or when the thread goes to sleep.
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

}  // namespace

FastPath::FastPath(const nb::capsule& exchange, nb::tuple types, TensorMemory memory, std::int64_t slice_ns)
    : types_(std::move(types)),
      memory_(memory),
      slice_ns_(slice_ns),
      requires_grad_(nb::steal<nb::str>(PyUnicode_InternFromString("requires_grad"))) {
  const auto* api = static_cast<const Exchange*>(exchange.data("dlpack_exchange_api"));
  while (api != nullptr && api->major != kExchangeMajor) api = api->older;
  if (api == nullptr || api->view == nullptr) throw InvalidArgument("these tensors cannot be looked at from C");
  exchange_ = api->view;
}

nb::object FastPath::add_form(const nb::tuple& names, nb::tuple defaults, std::size_t positional) {
  nb::object form = nb::cast(std::make_unique<CallSignature>(names, std::move(defaults), positional));
  forms_.append(form);
  return form;
}

bool FastPath::takes(PyObject* tensor) const noexcept {
  // Exactly these: what a subclass makes of an operation is its own affair.
  const auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types_.ptr()); ++i) {
    if (PyTuple_GET_ITEM(types_.ptr(), i) == type) return true;
  }
  return false;
}

std::optional<nb::dlpack::dltensor> FastPath::view(PyObject* tensor) const noexcept {
  // Negated, sparse, traced, shrunk ...: the Python function resolves it, or raises its own error.
  if (!takes(tensor) || !memory_.is_plain(tensor)) return std::nullopt;
  nb::dlpack::dltensor found{};
  if (exchange_(tensor, &found) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  return memory_.is_whole(tensor, found) ? std::optional(found) : std::nullopt;
}

std::unique_ptr<PersistentCollective> FastPath::make(const nb::object& tensor, const nb::object& runtime,
                                                     const std::string& wire,
                                                     const PersistentCollective::CollectiveParams& how, nb::tuple given,
                                                     const PersistentCollective::Group& group) const {
  const std::optional<nb::dlpack::dltensor> found = view(tensor.ptr());
  if (!found || !contiguous(*found) || found->data == nullptr || found->device.device_type != kOnCpu) return nullptr;
  return std::make_unique<PersistentCollective>(runtime, wire, &*found, how, std::move(given), group);
}

void FastPath::cache_persistent(const nb::str& key, const nb::object& tensor, const nb::object& runtime,
                                const std::string& wire, const PersistentCollective::CollectiveParams& how) {
  std::unique_ptr<PersistentCollective> persistent = make(tensor, runtime, wire, how, nb::tuple());
  if (persistent == nullptr) return;
  if (persistent_.size() >= most_repeated(runtime) && !persistent_.contains(key)) persistent_.clear();
  persistent_[key] = nb::cast(std::move(persistent));
}

Ticket FastPath::submit_persistent(const nb::str& key, nb::handle tensor) const {
  const nb::object entry = nb::borrow(PyDict_GetItemWithError(persistent_.ptr(), key.ptr()));
  if (!entry.is_valid()) return 0;
  const std::optional<nb::dlpack::dltensor> found = view(tensor.ptr());
  const auto& persistent = *nb::inst_ptr<PersistentCollective>(entry);
  if (!found || !persistent.fits(*found)) return 0;
  persistent.notice();
  return persistent.submit(address_of(*found));
}

std::vector<std::size_t> FastPath::settle_persistent(Runtime& runtime, const std::vector<Ticket>& tickets,
                                                     const AnyList& tensors) const {
  runtime.steps().waited();
  for (const Ticket ticket : tickets) {
    while (!runtime.operation(ticket)->done()) {
      try {
        const LockOutOfSleep lock(true);
        (void)runtime.wait(ticket, Deadline::after(slice_ns_));
      } catch (const Error&) {
        break;  // the next wait for the operations that are left throws it again
      }
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    }
  }
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    const std::optional<nb::dlpack::dltensor> tensor = view(tensors[i].ptr());
    const bool here = tensor && address_of(*tensor) == runtime.operation(tickets[i])->output;
    if (!here || !runtime.release_if_done(tickets[i])) left.push_back(i);
  }
  return left;
}

void FastPath::cache_call(CallSignature& form, const nb::object& name, const nb::object& tensor,
                          const nb::object& runtime, const CallDetails& words, const nb::object& result_factory) {
  const auto& [wire, how, given] = words;
  std::unique_ptr<PersistentCollective> persistent =
      tensor.is_none() ? std::make_unique<PersistentCollective>(runtime, wire, nullptr, how, given)
                       : make(tensor, runtime, wire, how, given);
  if (persistent == nullptr) return;
  if (!result_factory.is_none()) {
    const nb::tuple parts(result_factory);
    persistent->set_result_factory({nb::object(parts[0]), nb::object(parts[1]), nb::cast<bool>(parts[2]),
                                    nb::cast<std::vector<std::int64_t>>(parts[3])});
  }
  form.cache_call(name, nb::cast(std::move(persistent)), most_repeated(runtime));
}

void FastPath::cache_group(CallSignature& form, const nb::str& name, const nb::typed<nb::sequence, nb::any>& tensors,
                           const nb::object& runtime, const std::vector<std::string>& wires,
                           const std::vector<PersistentCollective::CollectiveParams>& hows, const AnyTuple& given,
                           const std::string& group) {
  if (wires.size() > most_repeated(runtime)) return;
  PersistentGroup made;
  for (std::size_t i = 0; i < wires.size(); ++i) {
    const PersistentCollective::Group member{group, static_cast<std::uint32_t>(wires.size())};
    made.members.push_back(make(nb::object(tensors[i]), runtime, wires[i], hows[i], given, member));
    if (made.members.back() == nullptr) return;
  }
  form.cache_call(name, nb::cast(std::move(made)), most_repeated(runtime) / wires.size());
}

void FastPath::clear() {
  for (const nb::handle form : forms_) nb::inst_ptr<CallSignature>(form)->clear();
  persistent_.clear();
  pending_.clear();
  runtime_.reset();
}

std::size_t FastPath::size() const {
  std::size_t calls = 0;
  for (const nb::handle form : forms_) calls += nb::inst_ptr<CallSignature>(form)->size();
  return calls;
}

std::optional<FastPath::Found> FastPath::find(const CallSignature& form, const Arguments& arguments) const noexcept {
  nb::object entry = form.known(arguments);
  if (!entry.is_valid()) return std::nullopt;
  auto* const persistent = nb::inst_ptr<PersistentCollective>(entry);
  if (!persistent->fits(form, arguments)) return std::nullopt;
  PyObject* const given = form.tensor(arguments);
  if (given == nullptr) return Found{std::move(entry), persistent, nullptr};
  const std::optional<nb::dlpack::dltensor> tensor = view(given);
  if (!tensor || !persistent->fits(*tensor)) return std::nullopt;
  return Found{std::move(entry), persistent, address_of(*tensor)};
}

/// Whatever does not say no counts as yes.
bool FastPath::wants_gradient(PyObject* tensor) const noexcept {
  const nb::object wants = nb::steal(PyObject_GetAttr(tensor, requires_grad_.ptr()));
  if (!wants.is_valid()) PyErr_Clear();
  return wants.ptr() != Py_False;
}

/// Where the result goes. Nothing when a gradient may flow through, which needs the function.
std::optional<FastPath::Result> FastPath::result_of(const Found& found, PyObject* tensor, PyObject* out) const {
  Result result{nb::borrow(tensor != nullptr ? tensor : Py_None), {found.address, found.address}};
  if (!found.persistent->result_factory()) return result;
  const ResultFactory& result_factory = *found.persistent->result_factory();
  if (wants_gradient(tensor)) return std::nullopt;
  if (out != nullptr && out != Py_None) return result_in(found, out);
  result.tensor = nb::steal(PyObject_CallOneArg(result_factory.function.ptr(), result_factory.argument.ptr()));
  if (!result.tensor.is_valid()) nb::raise_python_error();
  const std::optional<nb::dlpack::dltensor> made = view(result.tensor.ptr());
  if (!made || !found.persistent->fits_result(*made)) return std::nullopt;  // another device is torch's default now
  result.memory.output = address_of(*made);
  if (result_factory.gathers) result.memory.room = bytes_of(*made);
  return result;
}

/// The same in a tensor of the caller's. Nothing when it is not what the result is like, or overlaps what is sent.
std::optional<FastPath::Result> FastPath::result_in(const Found& found, PyObject* out) const {
  const PersistentCollective& persistent = *found.persistent;
  if (wants_gradient(out)) return std::nullopt;
  const std::optional<nb::dlpack::dltensor> given = view(out);
  if (!given || !persistent.fits_result(*given)) return std::nullopt;
  const auto* const sent = static_cast<const std::byte*>(found.address);
  std::byte* const to = address_of(*given);
  const std::size_t bytes = bytes_of(*given);
  if (std::less<>()(sent, to + bytes) && std::less<>()(to, sent + persistent.bytes())) return std::nullopt;
  return Result{
      nb::borrow(out), {found.address, to, {}, nullptr, persistent.result_factory()->gathers ? bytes : 0}, true};
}

/// The handle of what was submitted; of an allreduce in place the tensor itself stands for that.
nb::object FastPath::enter(const PersistentCollective& persistent, Ticket ticket, PyObject* what) {
  if (!runtime_.is(persistent.runtime())) runtime_ = persistent.runtime();
  nb::object handle = nb::steal(PyLong_FromUnsignedLongLong(ticket));
  if (!handle.is_valid() || PyDict_SetItem(pending_.ptr(), handle.ptr(), what) != 0) nb::raise_python_error();
  return handle;
}

PyObject* FastPath::now(const CallSignature& form, const Arguments& arguments) {
  const std::optional<Found> found = find(form, arguments);
  if (!found) return nullptr;
  const PersistentCollective& persistent = *found->persistent;
  PyObject* const tensor = form.tensor(arguments);
  const std::optional<Result> result = result_of(*found, tensor, form.out(arguments));
  if (!result) return nullptr;
  Ticket ticket = 0;
  persistent.notice();
  {
    const LockOutOfSleep lock(std::max(persistent.bytes(), result->memory.room) > kHeldBytes);
    ticket = persistent.native().run_now(persistent.request(), result->memory, slice_ns_);
  }
  persistent.native().steps().waited();
  if (ticket == 0) return nb::object(result->tensor).release().ptr();
  // Entered before anything of Python runs, where an interrupt may end the call: the memory is in use.
  const bool in_place = tensor != nullptr && !persistent.result_factory();
  const nb::object handle = in_place ? enter(persistent, ticket, tensor)
                                     : enter(persistent, ticket, pending_of(persistent, ticket, *result, tensor).ptr());
  return wait(handle);
}

nb::object FastPath::pending_of(const PersistentCollective& persistent, Ticket ticket, const Result& result,
                                PyObject* tensor) const {
  const bool gathers = persistent.result_factory() && persistent.result_factory()->gathers;
  const nb::object sent = nb::borrow(tensor != nullptr ? tensor : Py_None);
  return nb::cast(PendingResult{ticket, result.tensor, sent, gathers, result.given, settler_});
}

/// As the function behind synchronize() does when that does not know an answer: the call must not begin anew.
PyObject* FastPath::wait(const nb::object& handle) {
  try {
    PyObject* const result = synchronize(handle.ptr());
    if (result != nullptr || PyErr_Occurred() != nullptr) return result;
  } catch (const Error&) {
    // The handle was cleared meanwhile: the function raises that.
  }
  return PyObject_CallOneArg(waiter_.ptr(), handle.ptr());
}

PyObject* FastPath::submit(const CallSignature& form, const Arguments& arguments) {
  const std::optional<Found> found = find(form, arguments);
  if (!found) return nullptr;
  found->persistent->notice();
  const Ticket ticket = found->persistent->submit(found->address);
  return enter(*found->persistent, ticket, form.tensor(arguments)).release().ptr();
}

/// Nothing when the tensors are not like those of the group.
std::vector<PersistentAt> FastPath::find_group(const PersistentGroup& group, const nb::list& tensors) const {
  if (tensors.size() != group.members.size()) return {};
  std::vector<PersistentAt> calls;
  calls.reserve(tensors.size());
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    const PersistentCollective& member = *group.members[i];
    const auto found = view(PyList_GET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(i)));
    if (!found || !member.fits(*found)) return {};
    calls.push_back({&member.request(), address_of(*found)});
  }
  return calls;
}

PyObject* FastPath::submit_group(const CallSignature& form, const Arguments& arguments) {
  const nb::object entry = form.known(arguments);
  if (!entry.is_valid()) return nullptr;
  const auto& group = *nb::inst_ptr<PersistentGroup>(entry);
  const PersistentCollective& first = *group.members.front();
  PyObject* const given = form.tensor(arguments);
  if (!first.fits(form, arguments) || !(PyList_CheckExact(given) || PyTuple_CheckExact(given))) return nullptr;
  PendingGroup pending;
  pending.tensors = nb::steal<nb::list>(PySequence_List(given));  // the caller's list is the caller's
  const std::vector<PersistentAt> calls = find_group(group, pending.tensors);
  if (calls.empty()) return nullptr;
  for (const std::unique_ptr<PersistentCollective>& member : group.members) member->notice();
  nb::inst_ptr<Runtime>(first.runtime())->submit(calls, pending.tickets);
  const Ticket ticket = pending.tickets.front();
  return enter(first, ticket, nb::cast(std::move(pending)).ptr()).release().ptr();
}

PyObject* FastPath::finish_group(const nb::object& handle, const nb::object& pending) {
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

PyObject* FastPath::synchronize(PyObject* handle) {
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
    if (finish != Finish::kDone) return nullptr;
  }
  if (PyDict_DelItem(pending_.ptr(), handle) != 0) PyErr_Clear();  // shut down by another thread meanwhile
  return Py_NewRef(tensor.ptr());
}

}  // namespace ringtune::bind
