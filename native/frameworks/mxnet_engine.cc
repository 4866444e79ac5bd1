#include "frameworks/mxnet_engine.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"
#include "frameworks/call_plan.h"
#include "frameworks/port.h"

namespace ringtune::frameworks::mxnet {
namespace {

// `NDArray::Reorder2DefaultAsync() const`: the C API has no function for it.
constexpr const char* kToPlainLayout = "_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv";

Api& functions() {
  static Api& only = *new Api;  // the engine's threads outlive the program's statics
  return only;
}

void check(int failed) {
  if (failed != 0) throw InvalidArgument(std::string("MXNet: ") + functions().GetLastError());
}

/// A reference of our own: the script may have dropped its array before the engine comes to the operation.
class OwnedArray {
 public:
  explicit OwnedArray(Array array) { check(functions().ShallowCopyNDArray(array, &array_)); }
  ~OwnedArray() {
    if (array_ != nullptr) functions().NDArrayFree(array_);
  }
  OwnedArray(OwnedArray&& other) noexcept : array_(std::exchange(other.array_, nullptr)) {}
  OwnedArray(const OwnedArray&) = delete;
  OwnedArray& operator=(const OwnedArray&) = delete;
  OwnedArray& operator=(OwnedArray&&) = delete;
  [[nodiscard]] Array get() const noexcept { return array_; }

 private:
  Array array_ = nullptr;
};

DType dtype_of(Array array) {
  int number = -1;
  check(functions().NDArrayGetDType(array, &number));
  // In MXNet's order (mshadow/base.h).
  constexpr DType kKnown[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kUint8, DType::kInt32,
                              DType::kInt8,    DType::kInt64,   DType::kBool,    DType::kInt16, DType::kUint16,
                              DType::kUint32,  DType::kUint64,  DType::kBfloat16};
  if (number < 0 || number >= static_cast<int>(std::size(kKnown))) {
    throw InvalidArgument("an array of MXNet's type " + std::to_string(number) + " does not travel");
  }
  return kKnown[number];
}

std::vector<std::int64_t> shape_of(Array array) {
  int rank = 0;
  const std::int64_t* dims = nullptr;
  check(functions().NDArrayGetShapeEx64(array, &rank, &dims));
  if (rank < 0) throw InvalidArgument("an array whose shape is not known does not travel");
  return {dims, dims + rank};
}

/// On a thread of the engine, while the operation holds the array: it is computed, and in the plain layout.
void* data_of(const OwnedArray& array) {
  void* data = nullptr;
  check(functions().NDArrayGetData(array.get(), &data));
  return data;
}

/// What the engine waits for: views of one array have one variable, and one that is written is not to be read too.
/// MXNet's NDArray begins with the pointer to what its views share.
void* shared_by_views(Array array) { return *static_cast<void**>(array); }

void add_once(Arrays& arrays, Array array, const Arrays& besides = {}) {
  const auto same = [array](Array one) { return shared_by_views(one) == shared_by_views(array); };
  if (std::ranges::any_of(arrays, same) || std::ranges::any_of(besides, same)) return;
  arrays.push_back(array);
}

/// Empty: none has failed.
std::string failure_in(const Outcomes& outcomes) {
  const auto failed = std::ranges::find_if(outcomes, [](const Outcome& one) { return one.failed(); });
  return failed == outcomes.end() ? "" : "ringtune." + failed->error + ": " + failed->text;
}

/// As MXNet throws: dmlc::Error is a std::runtime_error and no more.
void finish(const Completion& completion, const Outcomes& outcomes) {
  const std::string failure = failure_in(outcomes);
  const std::runtime_error error(failure);
  completion.callback(completion.engine, completion.parameter, failure.empty() ? nullptr : &error);
}

struct Operation {
  struct Member {
    OwnedArray input, output;
    Request request;
  };
  std::vector<Member> members;

  [[nodiscard]] Calls calls() const {
    Calls found;
    for (const Member& one : members) {
      found.push_back({one.request, data_of(one.input), data_of(one.output)});
    }
    return found;
  }
};

void run(void*, void* on_complete, void* parameter) {
  const Completion completion = *static_cast<const Completion*>(on_complete);
  Calls calls;
  try {
    calls = static_cast<const Operation*>(parameter)->calls();
  } catch (const Error&) {
    Outcomes refused;
    refused.push_back(outcome_of(std::current_exception()));
    return finish(completion, refused);
  }
  port().submit(std::move(calls), [completion](const Outcomes& outcomes) { finish(completion, outcomes); });
}

void run_end_of_step(void*, void* on_complete, void*) {
  const Completion completion = *static_cast<const Completion*>(on_complete);
  port().end_step();
  finish(completion, {});
}

void push_operation(Run what, void* parameter, void (*drop)(void*), Arrays& reads, Arrays& writes, int priority,
                    const char* name) {
  // At once, on the thread that finds it ready: it only submits.
  constexpr int kAsync = 4;       // of FnProperty
  constexpr int kCpu[] = {1, 0};  // a Context: type and number of the device
  check(functions().EnginePushAsyncND(what, parameter, drop, &kCpu, reads.data(), static_cast<int>(reads.size()),
                                      writes.data(), static_cast<int>(writes.size()), &kAsync, priority, name, false));
}

}  // namespace

Api api_of(void* library) {
  Api found;
  std::string missing;
#define RINGTUNE_MXNET_FIND(NAME, RESULT, ARGUMENTS)                                \
  found.NAME = reinterpret_cast<RESULT(*) ARGUMENTS>(::dlsym(library, "MX" #NAME)); \
  if (found.NAME == nullptr && missing.empty()) missing = "MX" #NAME;
  RINGTUNE_MXNET_FUNCTIONS(RINGTUNE_MXNET_FIND)
#undef RINGTUNE_MXNET_FIND
  if (!missing.empty()) throw InvalidArgument("MXNet's library has no function " + missing + ": MXNet 1.9.1 has");
  const char* const kind = std::getenv("MXNET_ENGINE_TYPE");
  found.at_once = kind != nullptr && std::string_view(kind) == "NaiveEngine";
  found.to_plain_layout = reinterpret_cast<void (*)(const void*)>(::dlsym(library, kToPlainLayout));
  return found;
}

void use(const Api& api) { functions() = api; }

std::string push(std::string_view plan, const Arrays& inputs, const Arrays& outputs, int priority) {
  const CallPlan parsed = parse_call_plan(plan);
  if (inputs.size() != parsed.names.size() || outputs.size() != inputs.size()) {
    throw InvalidArgument("an input and an output are needed for each of " + std::to_string(parsed.names.size()) +
                          " names");
  }
  auto operation = std::make_unique<Operation>();
  Arrays reads, writes;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Request request = request_for(parsed, i, dtype_of(inputs[i]), shape_of(inputs[i]));
    // Only arrays of two dimensions and more are laid out otherwise.
    if (functions().to_plain_layout != nullptr && request.shape.size() > 1) functions().to_plain_layout(inputs[i]);
    operation->members.push_back({OwnedArray(inputs[i]), OwnedArray(outputs[i]), std::move(request)});
    add_once(writes, operation->members.back().output.get());
  }
  for (const Operation::Member& one : operation->members) add_once(reads, one.input.get(), writes);
  port().ask([&operation](const Runtime& runtime) {  // of the memory it is known only later where it is
    for (const Operation::Member& one : operation->members) {
      runtime.check({one.request, one.input.get(), one.output.get()});
    }
  });
  if (functions().at_once) return failure_in(port().run(operation->calls()));
  push_operation(
      &run, operation.release(), [](void* held) { delete static_cast<Operation*>(held); }, reads, writes, priority,
      "ringtune");
  return {};
}

void push_end_of_step(const Arrays& arrays) {
  Arrays reads, writes;
  for (Array const array : arrays) add_once(reads, array);
  push_operation(&run_end_of_step, nullptr, [](void*) {}, reads, writes, 0, "ringtune step");
}

}  // namespace ringtune::frameworks::mxnet
