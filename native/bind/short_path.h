// The short path of calls that repeat themselves: an allreduce in place of a tensor that was called alike before goes
// from the interpreter to the runtime without a frame of Python. Whatever is unusual about a call - another tensor, an
// error, a wait that was interrupted - is left to the Python function behind it, which meets the same again.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/runtime.h"

namespace ringtune::bind {

/// The arguments of an allreduce, by position; null where none was given.
enum Argument : std::size_t { kTensor, kAverage, kName, kOp, kPrescale, kPostscale, kProcessSet, kArguments };
using Arguments = std::array<PyObject*, kArguments>;

/// An allreduce as it was called last under its name. Holds its runtime.
class Repeated {
 public:
  /// Dtype number, operation, factors, number of the process set, number of the dtype to travel as (-1: its own).
  using How = std::tuple<int, int, double, double, std::uint32_t, int>;
  /// Members of a group have its name and how many they are.
  using Group = std::pair<std::string, std::uint32_t>;
  /// `given`: the arguments from `kOp` on as the caller wrote them. Throws as Runtime::keep.
  Repeated(nanobind::object runtime, std::string_view wire, const nanobind::dlpack::dltensor& tensor, const How& how,
           nanobind::tuple given, const Group& group);
  ~Repeated();
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;

  [[nodiscard]] bool fits(const nanobind::dlpack::dltensor& tensor) const noexcept;
  [[nodiscard]] bool fits(const Arguments& arguments, const nanobind::tuple& defaults) const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept { return request_.prepared->bytes; }
  [[nodiscard]] const nanobind::object& runtime() const noexcept { return runtime_; }
  /// Before it is submitted. May run Python code.
  void notice() const { native_.steps().submitted(step_token_); }
  Ticket now(void* address, std::int64_t timeout_ns) const {
    return native_.allreduce_now(request_, address, address, timeout_ns);
  }
  Ticket submit(void* address) const { return native_.submit(request_, address, address); }
  [[nodiscard]] const RepeatedRequest& request() const noexcept { return request_; }

 private:
  nanobind::object runtime_;
  Runtime& native_;
  nanobind::tuple given_;
  nanobind::dlpack::dtype dtype_;
  std::vector<std::int64_t> shape_;
  RepeatedRequest request_;
  StepWatch::Token step_token_ = 0;
};

/// A group of them as it was called last under its name. Not empty.
struct RepeatedGroup {
  RepeatedGroup() = default;
  RepeatedGroup(RepeatedGroup&&) = default;
  RepeatedGroup(const RepeatedGroup&) = delete;
  std::vector<std::unique_ptr<Repeated>> members;
};

/// What belongs to the handle of such a group; to Python as its own `Pending`.
struct PendingGroup {
  std::vector<Ticket> tickets;
  nanobind::list tensors;
};

/// What the calls share. Every method needs the interpreter's lock.
class ShortPath {
 public:
  /// `exchange`: the `__dlpack_c_exchange_api__` of the tensors; `types`: classes of tensors that are looked at;
  /// `defaults`: of the arguments from `kOp` on; `slice_ns`: longest wait without a look at signals.
  ShortPath(const nanobind::capsule& exchange, nanobind::tuple types, nanobind::tuple defaults, std::int64_t slice_ns);

  /// Prepares the next call under this name; does nothing for a tensor that the path cannot take. `words`: How, and the
  /// arguments from `kOp` on as the caller wrote them.
  void remember(const nanobind::str& name, const nanobind::object& tensor, const nanobind::object& runtime,
                const std::string& wire, const nanobind::tuple& words);
  /// The same for a group: the tensors' names on the wire, how each is reduced, and the group's own name there.
  void remember_group(const nanobind::str& name, const nanobind::sequence& tensors, const nanobind::object& runtime,
                      const std::vector<std::string>& wires, const std::vector<Repeated::How>& hows,
                      const nanobind::tuple& given, const std::string& group);
  /// The same for calls that state no arguments but a key that stands for them.
  void remember_alike(const nanobind::str& key, const nanobind::object& tensor, const nanobind::object& runtime,
                      const std::string& wire, const Repeated::How& how);
  /// Submits a tensor under such a key: its ticket; 0 when it is not like the one that was remembered. Throws as
  /// Runtime::submit.
  [[nodiscard]] Ticket submit_alike(const nanobind::str& key, nanobind::handle tensor) const;
  /// The Python function that waits for a handle. To be given before the first call.
  void set_waiter(nanobind::object function) { waiter_ = std::move(function); }
  /// Forgets everything.
  void clear();
  [[nodiscard]] std::size_t size() const { return repeated_.size(); }
  [[nodiscard]] nanobind::dict pending() const { return pending_; }

  // What the calls do; null without an error when the Python function shall do it, with one when it is raised.
  PyObject* now(const Arguments& arguments);
  PyObject* submit(const Arguments& arguments);
  PyObject* submit_group(const Arguments& arguments);
  PyObject* synchronize(PyObject* handle);

  /// False when the arguments are none that the path knows.
  [[nodiscard]] bool read(PyObject* const* args, std::size_t count, PyObject* keywords, Arguments& found,
                          bool group = false) const noexcept;

 private:
  struct Found {
    nanobind::object entry;
    Repeated* repeated;
    void* address;
  };
  [[nodiscard]] std::unique_ptr<Repeated> make(const nanobind::object& tensor, const nanobind::object& runtime,
                                               const std::string& wire, const Repeated::How& how, nanobind::tuple given,
                                               const Repeated::Group& group = {}) const;
  [[nodiscard]] static nanobind::object entry_of(const Arguments& arguments, const nanobind::dict& known) noexcept;
  [[nodiscard]] std::vector<RepeatedAt> find_group(const RepeatedGroup& group, const nanobind::list& tensors) const;
  PyObject* finish_group(const nanobind::object& handle, const nanobind::object& pending);
  [[nodiscard]] std::optional<nanobind::dlpack::dltensor> view(PyObject* tensor) const noexcept;
  [[nodiscard]] bool takes(PyObject* tensor) const noexcept;
  [[nodiscard]] std::optional<Found> find(const Arguments& arguments) const noexcept;
  nanobind::object enter(const Repeated& repeated, Ticket ticket, PyObject* what);
  PyObject* wait(const nanobind::object& handle);

  int (*exchange_)(void*, nanobind::dlpack::dltensor*) = nullptr;
  nanobind::tuple types_;
  nanobind::tuple defaults_;
  std::int64_t slice_ns_;
  std::array<nanobind::str, kArguments> names_;
  nanobind::str tensors_name_;  // of the first argument of a group
  nanobind::dict repeated_;     // name -> Repeated
  nanobind::dict groups_;       // name -> RepeatedGroup
  nanobind::dict alike_;        // key -> Repeated
  nanobind::dict pending_;      // ticket -> what belongs to it; a tensor that is reduced in place stands for itself
  nanobind::object waiter_;     // the Python function behind synchronize()
  nanobind::object runtime_;    // whose tickets those of tensors are
};

}  // namespace ringtune::bind
