#include "frameworks/tensorflow_kernels.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "base/error.h"
#include "frameworks/port.h"
#include "frameworks/tensorflow_attributes.h"

namespace ringtune::frameworks::tf {
namespace {

Code code_of(const std::string& error) {
  if (error == "InvalidArgument") return kInvalidArgument;
  if (error == "ShutDown") return kAborted;
  for (const char* disagrees : {"Mismatch", "SomeAbsent", "SomeSparse", "NotInitialized"}) {
    if (error == disagrees) return kFailedPrecondition;
  }
  return kUnknown;
}

void fail(Context* context, const Outcome& outcome) {
  const OwnedStatus status;
  // Python finds the class of ringtune's error by these words (core/tensorflow/library.py).
  const std::string text = "ringtune.errors." + outcome.error + ": " + outcome.text;
  api().SetStatus(status.get(), code_of(outcome.error), text.c_str());
  api().OpKernelContext_Failure(context, status.get());
}

void refuse_construction(Construction* construction, const Error& error) {
  const OwnedStatus status;
  api().SetStatus(status.get(), kInvalidArgument, error.what());
  api().OpKernelConstruction_Failure(construction, status.get());
}

/// One op of a graph, or of eager mode: the requests of its tensors without what only a run knows.
class CollectiveKernel {
 public:
  CollectiveKernel(CollectiveKind kind, Construction* construction) : kind_(kind) {
    Request request;
    request.kind = kind;
    request.process_set =
        kind == CollectiveKind::kJoin ? 0 : static_cast<std::uint32_t>(number_attribute(construction, "process_set"));
    if (kind == CollectiveKind::kBroadcast) {
      request.root = static_cast<std::int32_t>(number_attribute(construction, "root"));
    }
    const bool reduces = kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReducescatter;
    if (reduces) {
      request.op = reduce_op_from_wire(static_cast<std::uint8_t>(number_attribute(construction, "reduction")));
      request.prescale = factor_attribute(construction, "prescale");
      request.postscale = factor_attribute(construction, "postscale");
    }
    if (kind == CollectiveKind::kAllreduce) wire_ = number_attribute(construction, "wire");
    if (!has_list(kind)) {
      request.name = text_attribute(construction, "tensor_name");
      requests_ = {std::move(request)};
      return;
    }
    const std::vector<std::string> names = texts_attribute(construction, "names");
    requests_.assign(names.size(), request);
    for (std::size_t i = 0; i < names.size(); ++i) requests_[i].name = names[i];
    if (!reduces) return;
    const std::vector<std::string> groups = texts_attribute(construction, "groups");
    const std::vector<std::int64_t> sizes = numbers_attribute(construction, "group_sizes");
    if (groups.size() != names.size() || sizes.size() != names.size()) {
      throw InvalidArgument("groups and group_sizes have an entry for each name");
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      requests_[i].group = groups[i];
      requests_[i].group_size = static_cast<std::uint32_t>(sizes[i]);
    }
  }

  void run(Context* context, std::function<void()> finish) const {
    std::vector<DataType> types;
    Calls calls;
    try {
      calls = calls_of(context, types);
    } catch (const Error&) {
      fail(context, outcome_of(std::current_exception()));
      return finish();
    }
    port().submit(std::move(calls),
                  [this, context, types = std::move(types), finish = std::move(finish)](const Outcomes& outcomes) {
                    try {
                      settle(context, types, outcomes);
                    } catch (const Error&) {
                      fail(context, outcome_of(std::current_exception()));
                    }
                    finish();
                  });
  }

 private:
  static bool has_list(CollectiveKind kind) {
    return kind != CollectiveKind::kAlltoall && kind != CollectiveKind::kJoin && kind != CollectiveKind::kBarrier;
  }

  [[nodiscard]] Calls calls_of(Context* context, std::vector<DataType>& types) const {
    Calls calls;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      Submission call{requests_[i]};
      if (kind_ == CollectiveKind::kJoin || kind_ == CollectiveKind::kBarrier) {
        call.request.dtype = DType::kUint8;
        call.request.shape = {0};
      } else {
        types.push_back(describe(context, static_cast<int>(i), call));
      }
      calls.push_back(std::move(call));
    }
    return calls;
  }

  DataType describe(Context* context, int index, Submission& call) const {
    View view = input_view(context, index);
    call.input = view.data;
    call.request.dtype = dtype_of(view.type);
    switch (kind_) {
      case CollectiveKind::kAllreduce:
        if (wire_ >= 0 && is_floating(call.request.dtype) && static_cast<DType>(wire_) != call.request.dtype) {
          call.request.wire = dtype_from_wire(static_cast<std::uint8_t>(wire_));
        }
        [[fallthrough]];
      case CollectiveKind::kBroadcast:
        call.output = output_like(context, index, view.shape);
        break;
      case CollectiveKind::kReducescatter: {
        if (view.shape.empty()) break;  // refused by the runtime
        std::vector<std::int64_t> own = view.shape;
        own[0] = own_rows(view.shape[0], call.request.process_set);
        call.output = output_at(context, index, view.type, own, bytes_of(own, call.request.dtype));
        break;
      }
      case CollectiveKind::kAlltoall: {
        const View splits = input_view(context, 1);
        const std::size_t count = splits.shape.empty() ? 0 : static_cast<std::size_t>(splits.shape[0]);
        const auto* const rows = reinterpret_cast<const std::int32_t*>(splits.data);
        call.splits.assign(rows, rows + count);
        break;
      }
      case CollectiveKind::kAllgather:
        if (view.shape.empty()) {
          throw InvalidArgument("tensor '" + call.request.name +
                                "' has no dimension: allgather needs at least one to join along");
        }
        break;
      default:
        break;
    }
    call.request.shape = std::move(view.shape);
    return view.type;
  }

  static std::size_t bytes_of(const std::vector<std::int64_t>& shape, DType dtype) {
    std::size_t bytes = ringtune::size_of(dtype);
    for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
    return bytes;
  }

  /// How many of so many rows this rank gets.
  static std::int64_t own_rows(std::int64_t rows, std::uint32_t process_set) {
    std::int64_t size = 1;
    std::int64_t rank = 0;
    port().ask([&](const Runtime& runtime) {
      size = runtime.size();
      rank = runtime.rank();
      if (process_set == 0) return;
      const auto sets = runtime.process_sets();
      const auto found = sets.find(process_set);
      if (found == sets.end()) return;  // refused by the runtime
      const auto own = std::find(found->second.begin(), found->second.end(), rank);
      size = static_cast<std::int64_t>(found->second.size());
      rank = own - found->second.begin();
    });
    return rows / size + (rank < rows % size ? 1 : 0);
  }

  void settle(Context* context, const std::vector<DataType>& types, const Outcomes& outcomes) const {
    for (const Outcome& outcome : outcomes) {
      if (outcome.failed()) return fail(context, outcome);
    }
    if (kind_ == CollectiveKind::kJoin || kind_ == CollectiveKind::kBarrier) {
      const auto number = static_cast<std::int32_t>(outcomes[0].number);
      std::memcpy(output_at(context, 0, kInt32, {}, sizeof number), &number, sizeof number);
    }
    if (kind_ == CollectiveKind::kAllgather || kind_ == CollectiveKind::kAlltoall) {
      for (std::size_t i = 0; i < outcomes.size(); ++i) {
        const ResultMemory& found = outcomes[i].gathered;
        std::byte* const output = output_at(context, static_cast<int>(i), types[i], outcomes[i].shape, found.size());
        if (!found.empty()) std::memcpy(output, found.data(), found.size());
      }
    }
    if (kind_ == CollectiveKind::kAlltoall) {
      const std::vector<std::int32_t> rows(outcomes[0].splits.begin(), outcomes[0].splits.end());
      const std::size_t bytes = rows.size() * sizeof(std::int32_t);
      std::byte* const output = output_at(context, 1, kInt32, {static_cast<std::int64_t>(rows.size())}, bytes);
      if (bytes > 0) std::memcpy(output, rows.data(), bytes);
    }
  }

  CollectiveKind kind_;
  std::vector<Request> requests_;
  std::int64_t wire_ = -1;
};

template <CollectiveKind Kind>
void* create(Construction* construction) {
  try {
    return new CollectiveKernel(Kind, construction);
  } catch (const Error& error) {
    refuse_construction(construction, error);
    return nullptr;
  }
}

/// RingtuneMeet: which of two it is, an attribute says.
void* create_meeting(Construction* construction) {
  try {
    const bool joins = text_attribute(construction, "kind") == "join";
    return new CollectiveKernel(joins ? CollectiveKind::kJoin : CollectiveKind::kBarrier, construction);
  } catch (const Error& error) {
    refuse_construction(construction, error);
    return nullptr;
  }
}

void compute(void* kernel, Context* context, Done* done) {
  // `done` is a std::function<void()> that dies when this returns.
  std::function<void()> finish = *reinterpret_cast<std::function<void()>*>(done);
  static_cast<const CollectiveKernel*>(kernel)->run(context, std::move(finish));
}

void remove_kernel(void* kernel) { delete static_cast<CollectiveKernel*>(kernel); }

struct Question {
  std::string what;
  std::uint32_t process_set;
};

std::int64_t answer_of(const Question& question, const Runtime& runtime) {
  if (question.what == "rank") return runtime.rank();
  if (question.what == "local_rank") return runtime.topology().local_rank;
  if (question.what == "local_size") return runtime.topology().local_size;
  const auto sets = runtime.process_sets();
  const auto found = sets.find(question.process_set);
  const bool included = question.what == "included";
  if (found == sets.end()) {
    if (included) return -2;
    throw InvalidArgument("there is no process set " + std::to_string(question.process_set));
  }
  const std::vector<int>& members = found->second;
  if (question.what == "size") return static_cast<std::int64_t>(members.size());
  const auto own = std::find(members.begin(), members.end(), runtime.rank());
  if (included) return own == members.end() ? 0 : 1;
  if (question.what == "set_rank") return own - members.begin();
  throw InvalidArgument("RingtuneAsk: there is no figure '" + question.what + "'");
}

}  // namespace

KernelFunctions kernel_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllreduce:
      return {&create<CollectiveKind::kAllreduce>, &compute, &remove_kernel};
    case CollectiveKind::kReducescatter:
      return {&create<CollectiveKind::kReducescatter>, &compute, &remove_kernel};
    case CollectiveKind::kAllgather:
      return {&create<CollectiveKind::kAllgather>, &compute, &remove_kernel};
    case CollectiveKind::kBroadcast:
      return {&create<CollectiveKind::kBroadcast>, &compute, &remove_kernel};
    case CollectiveKind::kAlltoall:
      return {&create<CollectiveKind::kAlltoall>, &compute, &remove_kernel};
    default:
      return {&create_meeting, &compute, &remove_kernel};
  }
}

void* create_question(Construction* construction) {
  try {
    return new Question{text_attribute(construction, "what"),
                        static_cast<std::uint32_t>(number_attribute(construction, "process_set"))};
  } catch (const Error& error) {
    refuse_construction(construction, error);
    return nullptr;
  }
}

void answer(void* question, Context* context) {
  const Question& asked = *static_cast<const Question*>(question);
  std::int32_t found = -1;
  try {
    const bool open =
        port().ask([&](const Runtime& runtime) { found = static_cast<std::int32_t>(answer_of(asked, runtime)); });
    if (!open && asked.what != "included") return fail(context, no_session());
    std::memcpy(output_at(context, 0, kInt32, {}, sizeof found), &found, sizeof found);
  } catch (const Error&) {
    fail(context, outcome_of(std::current_exception()));
  }
}

void delete_question(void* question) { delete static_cast<Question*>(question); }

void end_step(void*, Context*) { port().end_step(); }

}  // namespace ringtune::frameworks::tf
