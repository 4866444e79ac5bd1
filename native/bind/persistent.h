// Calls that repeat themselves: how a function takes its arguments, and what is known of a call that was made before.
// Every method needs the interpreter's lock.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/runtime.h"

namespace ringtune::bind {

inline constexpr std::size_t kMostArguments = 8;
/// The arguments of a call by position; null where none was given.
using Arguments = std::array<PyObject*, kMostArguments>;

/// The arguments that a function takes, and what its calls have been, by name.
class CallSignature {
 public:
  /// `names` of the arguments in order, among them at most one "tensor" or "tensors", "name", "process_set" and "out";
  /// `defaults`: what stands for one that is not given; `positional`: how many may be given without their names. Throws
  /// InvalidArgument.
  CallSignature(const nanobind::tuple& names, nanobind::tuple defaults, std::size_t positional);

  /// False when the arguments are none that the function has.
  [[nodiscard]] bool read(PyObject* const* args, std::size_t count, PyObject* keywords,
                          Arguments& found) const noexcept;
  /// Null where there is none.
  [[nodiscard]] PyObject* tensor(const Arguments& arguments) const noexcept { return at(arguments, tensor_); }
  [[nodiscard]] PyObject* out(const Arguments& arguments) const noexcept { return at(arguments, out_); }
  [[nodiscard]] PyObject* process_set(const nanobind::tuple& given) const noexcept;
  /// What is known of a call by its name; nothing if it has none. A function that takes no name has one call.
  [[nodiscard]] nanobind::object known(const Arguments& arguments) const noexcept;
  /// Whether the arguments say what those of an earlier call do, but for its tensors and name. Cheap: numbers that are
  /// written otherwise count as different.
  [[nodiscard]] bool alike(const Arguments& arguments, const nanobind::tuple& given) const noexcept;

  /// `most`: calls that are remembered; one more takes the place of them all, which costs less than to know the oldest.
  void cache_call(const nanobind::object& name, nanobind::object entry, std::size_t most);
  [[nodiscard]] std::size_t size() const { return known_.size(); }
  void clear() { known_.clear(); }

 private:
  static constexpr std::size_t kNone = kMostArguments;
  [[nodiscard]] static PyObject* at(const Arguments& arguments, std::size_t index) noexcept {
    return index == kNone ? nullptr : arguments[index];
  }

  std::vector<nanobind::str> names_;  // interned
  nanobind::tuple defaults_;
  std::size_t positional_;
  std::size_t out_ = kNone;
  std::size_t tensor_ = kNone;
  std::size_t name_ = kNone;
  std::size_t process_set_ = kNone;
  nanobind::dict known_;
};

/// How the result of a call that gives a new tensor is made: of a function and what that is called with.
/// `gathers`: it is as large as the ranks' contributions together.
struct ResultFactory {
  nanobind::object function;
  nanobind::object argument;
  bool gathers = false;
  std::vector<std::int64_t> shape = {};  // of the result
};

/// A collective as it was called last under its name. Holds its runtime.
class PersistentCollective {
 public:
  /// Numbers of kind, root, dtype and operation, factors, number of the process set, number of the dtype to travel as
  /// (-1: its own).
  using CollectiveParams = std::tuple<int, int, int, int, double, double, std::uint32_t, int>;
  /// Members of a group have its name and how many they are.
  using Group = std::pair<std::string, std::uint32_t>;
  /// `tensor`: null for a collective without; `given`: the arguments as the caller wrote them, by position. Throws as
  /// Runtime::keep.
  PersistentCollective(nanobind::object runtime, std::string_view wire, const nanobind::dlpack::dltensor* tensor,
                       const CollectiveParams& how, nanobind::tuple given, const Group& group = {});
  ~PersistentCollective();
  PersistentCollective(const PersistentCollective&) = delete;
  PersistentCollective& operator=(const PersistentCollective&) = delete;

  /// Its results are new tensors.
  void set_result_factory(ResultFactory result_factory) { result_factory_ = std::move(result_factory); }
  [[nodiscard]] const std::optional<ResultFactory>& result_factory() const noexcept { return result_factory_; }

  [[nodiscard]] bool fits(const nanobind::dlpack::dltensor& tensor) const noexcept;
  /// Whether a tensor of the caller's is one that its results may go to.
  [[nodiscard]] bool fits_result(const nanobind::dlpack::dltensor& tensor) const noexcept;
  /// Whether a call of that form says the same, but for its tensor.
  [[nodiscard]] bool fits(const CallSignature& form, const Arguments& arguments) const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept { return request_.prepared->bytes; }
  [[nodiscard]] const nanobind::object& runtime() const noexcept { return runtime_; }
  [[nodiscard]] Runtime& native() const noexcept { return native_; }
  /// Before it is submitted. May run Python code.
  void notice() const { native_.steps().submitted(step_token_); }
  Ticket submit(void* address) const { return native_.submit(request_, address, address); }
  [[nodiscard]] const PersistentRequest& request() const noexcept { return request_; }

 private:
  [[nodiscard]] bool is_like(const nanobind::dlpack::dltensor& tensor,
                             std::span<const std::int64_t> shape) const noexcept;

  nanobind::object runtime_;
  Runtime& native_;
  nanobind::tuple given_;
  std::optional<ResultFactory> result_factory_;
  nanobind::dlpack::dtype dtype_{};
  std::vector<std::int64_t> shape_;
  PersistentRequest request_;
  StepWatch::Token step_token_ = 0;
};

/// A group of them as it was called last under its name. Not empty.
struct PersistentGroup {
  PersistentGroup() = default;
  PersistentGroup(PersistentGroup&&) = default;
  PersistentGroup(const PersistentGroup&) = delete;
  std::vector<std::unique_ptr<PersistentCollective>> members;
};

/// What belongs to the handle of such a group; to Python as its own `Pending`.
struct PendingGroup {
  std::vector<Ticket> tickets;
  nanobind::list tensors;
};

/// What belongs to the handle of a call that could not be ended, and whose result was to be another tensor than what
/// was sent, or none; to Python likewise.
struct PendingResult {
  Ticket ticket = 0;
  nanobind::object output;
  nanobind::object sent;  // kept alive
  bool gathers = false;
  bool given = false;        // the output is the caller's
  nanobind::object settler;  // makes the result when the operation is done
};

[[nodiscard]] bool contiguous(const nanobind::dlpack::dltensor& tensor) noexcept;
[[nodiscard]] std::byte* address_of(const nanobind::dlpack::dltensor& tensor) noexcept;
[[nodiscard]] std::size_t bytes_of(const nanobind::dlpack::dltensor& tensor) noexcept;
inline constexpr int kOnCpu = 1;  // kDLCPU

}  // namespace ringtune::bind
