// The short path of calls that repeat themselves: a collective that was called alike before goes from the interpreter
// to the runtime without a frame of Python. Whatever is unusual about a call - another tensor, an error, a wait that
// was interrupted - is left to the Python function behind it, which meets the same again.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "bind/persistent.h"
#include "bind/tensor_memory.h"

namespace ringtune::bind {

/// What the calls share. Every method needs the interpreter's lock.
class FastPath {
 public:
  /// `exchange`: the `__dlpack_c_exchange_api__` of the tensors; `types`: classes of tensors that are looked at;
  /// `memory`: tells which of these hold their values; `slice_ns`: longest wait without a look at signals.
  FastPath(const nanobind::capsule& exchange, nanobind::tuple types, TensorMemory memory, std::int64_t slice_ns);

  /// A form that is cleared with all else; see CallSignature.
  nanobind::object add_form(const nanobind::tuple& names, nanobind::tuple defaults, std::size_t positional);

  /// What is said of a call beside its name and tensor: name on the wire; how; the arguments as the caller wrote them,
  /// by position.
  using CallDetails = std::tuple<std::string, PersistentCollective::CollectiveParams, AnyTuple>;
  /// Prepares the next call of that form under this name; does nothing for a tensor that the path cannot take.
  /// `tensor`: None for a collective without; `result_factory`: function and argument that make its result, and whether
  /// it gathers, and the result's shape; or None where the tensor is the result.
  void cache_call(CallSignature& form, const nanobind::object& name, const nanobind::object& tensor,
                  const nanobind::object& runtime, const CallDetails& words, const nanobind::object& result_factory);
  /// The same for a group: the tensors' names on the wire, how each is reduced, and the group's own name there.
  void cache_group(CallSignature& form, const nanobind::str& name,
                   const nanobind::typed<nanobind::sequence, nanobind::any>& tensors, const nanobind::object& runtime,
                   const std::vector<std::string>& wires,
                   const std::vector<PersistentCollective::CollectiveParams>& hows, const AnyTuple& given,
                   const std::string& group);
  /// The same for calls that state no arguments but a key that stands for them.
  void cache_persistent(const nanobind::str& key, const nanobind::object& tensor, const nanobind::object& runtime,
                        const std::string& wire, const PersistentCollective::CollectiveParams& how);
  /// Submits a tensor under such a key: its ticket; 0 when it is not like the one that was remembered. Throws as
  /// Runtime::submit.
  [[nodiscard]] Ticket submit_persistent(const nanobind::str& key, nanobind::handle tensor) const;
  /// Waits for allreduces in place and releases those whose results are in the memory of their tensors; returns the
  /// positions of the others: they have failed, or the tensor has been given other memory. All are as they were when
  /// Python's signals interrupt it. `tensors`: of `tickets`, one each.
  [[nodiscard]] std::vector<std::size_t> settle_persistent(Runtime& runtime, const std::vector<Ticket>& tickets,
                                                           const AnyList& tensors) const;
  /// The Python functions that wait for a handle, and that give the result of a call which could not be ended at once
  /// (PendingResult). To be given before the first call.
  void set_waiter(nanobind::object function) { waiter_ = std::move(function); }
  void set_settler(nanobind::object function) { settler_ = std::move(function); }
  /// Forgets everything.
  void clear();
  /// Calls of all forms that are remembered.
  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] nanobind::dict pending() const { return pending_; }

  // What the calls do; null without an error when the Python function shall do it, with one when it is raised.
  PyObject* now(const CallSignature& form, const Arguments& arguments);
  PyObject* submit(const CallSignature& form, const Arguments& arguments);
  PyObject* submit_group(const CallSignature& form, const Arguments& arguments);
  PyObject* synchronize(PyObject* handle);

 private:
  struct Found {
    nanobind::object entry;
    PersistentCollective* persistent;
    void* address;
  };
  struct Result {
    nanobind::object tensor;
    Memory memory;
    bool given = false;  // the caller's
  };
  [[nodiscard]] std::unique_ptr<PersistentCollective> make(const nanobind::object& tensor,
                                                           const nanobind::object& runtime, const std::string& wire,
                                                           const PersistentCollective::CollectiveParams& how,
                                                           nanobind::tuple given,
                                                           const PersistentCollective::Group& group = {}) const;
  [[nodiscard]] std::vector<PersistentAt> find_group(const PersistentGroup& group, const nanobind::list& tensors) const;
  PyObject* finish_group(const nanobind::object& handle, const nanobind::object& pending);
  [[nodiscard]] std::optional<nanobind::dlpack::dltensor> view(PyObject* tensor) const noexcept;
  [[nodiscard]] bool takes(PyObject* tensor) const noexcept;
  [[nodiscard]] std::optional<Found> find(const CallSignature& form, const Arguments& arguments) const noexcept;
  [[nodiscard]] std::optional<Result> result_of(const Found& found, PyObject* tensor, PyObject* out) const;
  [[nodiscard]] bool wants_gradient(PyObject* tensor) const noexcept;
  [[nodiscard]] std::optional<Result> result_in(const Found& found, PyObject* out) const;
  nanobind::object enter(const PersistentCollective& persistent, Ticket ticket, PyObject* what);
  PyObject* wait(const nanobind::object& handle);
  [[nodiscard]] nanobind::object pending_of(const PersistentCollective& persistent, Ticket ticket, const Result& result,
                                            PyObject* tensor) const;

  int (*exchange_)(void*, nanobind::dlpack::dltensor*) = nullptr;
  nanobind::tuple types_;
  TensorMemory memory_;
  std::int64_t slice_ns_;
  nanobind::str requires_grad_;
  nanobind::list forms_;
  nanobind::dict persistent_;  // key -> PersistentCollective
  nanobind::dict pending_;     // ticket -> what belongs to it; a tensor that is reduced in place stands for itself
  nanobind::object waiter_;    // the Python function behind synchronize()
  nanobind::object settler_;   // gives the result of a PendingResult
  nanobind::object runtime_;   // whose tickets those of tensors are
};

}  // namespace ringtune::bind
