// The ops that TensorFlow learns when it loads the library beside this module (native/bind/tensorflow_library/).
#include <initializer_list>
#include <string>

#include "frameworks/tensorflow_api.h"
#include "frameworks/tensorflow_kernels.h"

namespace ringtune::frameworks::tf {
namespace {

constexpr const char* kMoved =
    "T: list({uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, double, bool, "
    "complex64, "
    "complex128}) >= 1";
constexpr const char* kMovedOne =
    "T: {uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, double, bool, complex64, "
    "complex128}";
constexpr const char* kReduced =
    "T: list({uint8, int8, int16, int32, int64, half, bfloat16, float, double, bool}) >= 1";

/// Deleted when it goes out of scope.
class OwnedShape {
 public:
  explicit OwnedShape(Shape* shape = api().NewShapeHandle()) : shape_(shape) {}
  ~OwnedShape() { api().DeleteShapeHandle(shape_); }
  OwnedShape(const OwnedShape&) = delete;
  OwnedShape& operator=(const OwnedShape&) = delete;
  [[nodiscard]] Shape* get() const noexcept { return shape_; }

 private:
  Shape* shape_;
};

void same_shapes(ShapeContext* context, Status* status) {
  const int count = static_cast<int>(api().ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count && api().GetCode(status) == kOk; ++i) {
    const OwnedShape shape;
    api().ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (api().GetCode(status) == kOk) api().ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

Shape* vector_of_unknown_length(ShapeContext* context) {
  return api().ShapeInferenceContextVectorFromSize(context, static_cast<std::size_t>(-1));
}

/// Output `index` is as input `index` but for the number of rows.
void other_rows(ShapeContext* context, int index, Status* status) {
  const OwnedShape shape;
  api().ShapeInferenceContextGetInput(context, index, shape.get(), status);
  if (api().GetCode(status) != kOk) return;
  const bool known = api().ShapeInferenceContextRankKnown(context, shape.get()) != 0;
  const std::int64_t rank = known ? api().ShapeInferenceContextRank(context, shape.get()) : 0;
  if (rank < 1) return api().ShapeInferenceContextSetOutput(context, index, shape.get(), status);
  const OwnedShape rows(vector_of_unknown_length(context));
  const OwnedShape rest;
  const OwnedShape whole;
  api().ShapeInferenceContextSubshape(context, shape.get(), 1, rank, rest.get(), status);
  if (api().GetCode(status) != kOk) return;
  api().ShapeInferenceContextConcatenateShapes(context, rows.get(), rest.get(), whole.get(), status);
  if (api().GetCode(status) == kOk) api().ShapeInferenceContextSetOutput(context, index, whole.get(), status);
}

void other_rows_of_all(ShapeContext* context, Status* status) {
  const int count = static_cast<int>(api().ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count && api().GetCode(status) == kOk; ++i) other_rows(context, i, status);
}

void alltoall_shapes(ShapeContext* context, Status* status) {
  other_rows(context, 0, status);
  if (api().GetCode(status) != kOk) return;
  const OwnedShape splits(vector_of_unknown_length(context));
  api().ShapeInferenceContextSetOutput(context, 1, splits.get(), status);
}

void scalar_shape(ShapeContext* context, Status* status) {
  const OwnedShape scalar(api().ShapeInferenceContextScalar(context));
  api().ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

struct Definition {
  const char* name;
  std::initializer_list<const char*> attributes;
  std::initializer_list<const char*> inputs;
  std::initializer_list<const char*> outputs;
  ShapeFunction shapes;
};

std::string define(const Definition& definition) {
  OpDefinition* const op = api().NewOpDefinitionBuilder(definition.name);
  for (const char* attribute : definition.attributes) api().OpDefinitionBuilderAddAttr(op, attribute);
  for (const char* input : definition.inputs) api().OpDefinitionBuilderAddInput(op, input);
  for (const char* output : definition.outputs) api().OpDefinitionBuilderAddOutput(op, output);
  // Two equal collectives are never one, and one whose result nobody uses is run all the same: other ranks may use it.
  api().OpDefinitionBuilderSetIsStateful(op, true);
  api().OpDefinitionBuilderSetShapeInferenceFunction(op, definition.shapes);
  const OwnedStatus status;
  api().RegisterOpDefinition(op, status.get());
  return status.ok() ? "" : api().Message(status.get());
}

std::string add_kernel(const char* name, KernelBuilder* builder) {
  const OwnedStatus status;
  api().RegisterKernelBuilder(name, builder, status.get());
  return status.ok() ? "" : api().Message(status.get());
}

std::string add(CollectiveKind kind, const Definition& definition) {
  if (std::string fault = define(definition); !fault.empty()) return fault;
  const KernelFunctions functions = kernel_of(kind);
  return add_kernel(definition.name, api().NewAsyncKernelBuilder(definition.name, "CPU", functions.create,
                                                                 functions.compute, functions.remove));
}

void no_shapes(ShapeContext*, Status*) {}

std::string add_question() {
  const char* const name = "RingtuneAsk";
  std::string fault = define({name, {"what: string", "process_set: int"}, {}, {"answer: int32"}, &scalar_shape});
  if (!fault.empty()) return fault;
  return add_kernel(name, api().NewKernelBuilder(name, "CPU", &create_question, &answer, &delete_question));
}

std::string add_end_of_step() {
  const char* const name = "RingtuneEndStep";
  if (std::string fault = define({name, {}, {}, {}, &no_shapes}); !fault.empty()) return fault;
  return add_kernel(name, api().NewKernelBuilder(name, "CPU", nullptr, &end_step, nullptr));
}

std::string add_all() {
  std::string fault = load_api();
  const auto next = [&fault](auto&& step) {
    if (fault.empty()) fault = step();
  };
  next([] {
    return add(CollectiveKind::kAllreduce,
               {"RingtuneAllreduce",
                {kReduced, "names: list(string)", "groups: list(string)", "group_sizes: list(int)", "reduction: int",
                 "prescale: string", "postscale: string", "process_set: int", "wire: int"},
                {"tensors: T"},
                {"reduced: T"},
                &same_shapes});
  });
  next([] {
    return add(CollectiveKind::kReducescatter,
               {"RingtuneReducescatter",
                {kReduced, "names: list(string)", "groups: list(string)", "group_sizes: list(int)", "reduction: int",
                 "prescale: string", "postscale: string", "process_set: int"},
                {"tensors: T"},
                {"scattered: T"},
                &other_rows_of_all});
  });
  next([] {
    return add(CollectiveKind::kAllgather, {"RingtuneAllgather",
                                            {kMoved, "names: list(string)", "process_set: int"},
                                            {"tensors: T"},
                                            {"gathered: T"},
                                            &other_rows_of_all});
  });
  next([] {
    return add(CollectiveKind::kBroadcast, {"RingtuneBroadcast",
                                            {kMoved, "names: list(string)", "root: int", "process_set: int"},
                                            {"tensors: T"},
                                            {"received: T"},
                                            &same_shapes});
  });
  next([] {
    return add(CollectiveKind::kAlltoall, {"RingtuneAlltoall",
                                           {kMovedOne, "tensor_name: string", "process_set: int"},
                                           {"tensor: T", "splits: int32"},
                                           {"output: T", "received_splits: int32"},
                                           &alltoall_shapes});
  });
  next([] {
    return add(CollectiveKind::kBarrier, {"RingtuneMeet",
                                          {"kind: string", "tensor_name: string", "process_set: int"},
                                          {},
                                          {"number: int32"},
                                          &scalar_shape});
  });
  next(&add_question);
  next(&add_end_of_step);
  return fault;
}

}  // namespace
}  // namespace ringtune::frameworks::tf

/// Tells TensorFlow of the ops; returns why it could not, or null.
extern "C" __attribute__((visibility("default"))) const char* ringtune_add_tensorflow_ops() {
  static const std::string fault = ringtune::frameworks::tf::add_all();
  return fault.empty() ? nullptr : fault.c_str();
}
