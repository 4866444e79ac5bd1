#include "frameworks/tensorflow_attributes.h"

#include <charconv>

#include "base/error.h"

namespace ringtune::frameworks::tf {
namespace {

void check(const OwnedStatus& status) {
  if (!status.ok()) throw InvalidArgument(api().Message(status.get()));
}

struct AttributeSize {
  std::int32_t entries = 0;
  std::int32_t bytes = 0;
};

AttributeSize size_of_attribute(Construction* construction, const char* name) {
  const OwnedStatus status;
  AttributeSize size;
  api().OpKernelConstruction_GetAttrSize(construction, name, &size.entries, &size.bytes, status.get());
  check(status);
  return size;
}

}  // namespace

std::int64_t number_attribute(Construction* construction, const char* name) {
  const OwnedStatus status;
  std::int64_t value = 0;
  api().OpKernelConstruction_GetAttrInt64(construction, name, &value, status.get());
  check(status);
  return value;
}

std::string text_attribute(Construction* construction, const char* name) {
  const auto bytes = static_cast<std::size_t>(size_of_attribute(construction, name).bytes);
  std::string text(bytes, '\0');
  const OwnedStatus status;
  api().OpKernelConstruction_GetAttrString(construction, name, text.data(), bytes, status.get());
  check(status);
  return text;
}

double factor_attribute(Construction* construction, const char* name) {
  const std::string text = text_attribute(construction, name);
  double value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size()) {
    throw InvalidArgument(std::string(name) + "='" + text + "' is no number");
  }
  return value;
}

std::vector<std::int64_t> numbers_attribute(Construction* construction, const char* name) {
  const std::int32_t count = size_of_attribute(construction, name).entries;
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  const OwnedStatus status;
  api().OpKernelConstruction_GetAttrInt64List(construction, name, values.data(), count, status.get());
  check(status);
  return values;
}

std::vector<std::string> texts_attribute(Construction* construction, const char* name) {
  const AttributeSize size = size_of_attribute(construction, name);
  const auto count = static_cast<std::size_t>(size.entries);
  std::vector<char*> values(count);
  std::vector<std::size_t> lengths(count);
  std::vector<char> storage(static_cast<std::size_t>(size.bytes) + 1);
  const OwnedStatus status;
  api().OpKernelConstruction_GetAttrStringList(construction, name, values.data(), lengths.data(), size.entries,
                                               storage.data(), storage.size(), status.get());
  check(status);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i) texts.emplace_back(values[i], lengths[i]);
  return texts;
}

DType dtype_of(DataType type) {
  switch (type) {
    case kFloat:
      return DType::kFloat32;
    case kDouble:
      return DType::kFloat64;
    case kHalf:
      return DType::kFloat16;
    case kBfloat16:
      return DType::kBfloat16;
    case kInt8:
      return DType::kInt8;
    case kInt16:
      return DType::kInt16;
    case kInt32:
      return DType::kInt32;
    case kInt64:
      return DType::kInt64;
    case kUint8:
      return DType::kUint8;
    case kUint16:
      return DType::kUint16;
    case kUint32:
      return DType::kUint32;
    case kUint64:
      return DType::kUint64;
    case kComplex64:
      return DType::kComplex64;
    case kComplex128:
      return DType::kComplex128;
    case kBool:
      return DType::kBool;
  }
  throw InvalidArgument("tensors of TensorFlow's type number " + std::to_string(type) +
                        " do not travel: cast it first");
}

View input_view(Context* context, int index) {
  const OwnedStatus status;
  Tensor* tensor = nullptr;
  api().GetInput(context, index, &tensor, status.get());
  check(status);
  View view{api().TensorType(tensor), {}, static_cast<std::byte*>(api().TensorData(tensor))};
  for (int i = 0; i < api().NumDims(tensor); ++i) view.shape.push_back(api().Dim(tensor, i));
  // The run holds the tensor until it is done; one reference more, and its memory could not become the output's.
  api().DeleteTensor(tensor);
  return view;
}

namespace {

std::byte* take(Tensor* tensor, const OwnedStatus& status) {
  check(status);
  auto* const data = static_cast<std::byte*>(api().TensorData(tensor));
  api().DeleteTensor(tensor);  // the run has the output
  return data;
}

}  // namespace

std::byte* output_like(Context* context, int index, const std::vector<std::int64_t>& shape) {
  const OwnedStatus status;
  Tensor* const tensor = api().ForwardInputOrAllocateOutput(context, &index, 1, index, shape.data(),
                                                            static_cast<int>(shape.size()), nullptr, status.get());
  return take(tensor, status);
}

std::byte* output_at(Context* context, int index, DataType type, const std::vector<std::int64_t>& shape,
                     std::size_t bytes) {
  const OwnedStatus status;
  Tensor* const tensor =
      api().AllocateOutput(context, index, type, shape.data(), static_cast<int>(shape.size()), bytes, status.get());
  return take(tensor, status);
}

}  // namespace ringtune::frameworks::tf
