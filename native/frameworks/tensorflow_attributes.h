// Attributes of an op, as its kernel reads them when it is made; and what of a tensor is needed.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "frameworks/tensorflow_api.h"

namespace ringtune::frameworks::tf {

/// Each throws InvalidArgument when the op has no such attribute.
[[nodiscard]] std::int64_t number_attribute(Construction* construction, const char* name);
[[nodiscard]] std::string text_attribute(Construction* construction, const char* name);
/// A number as text, since TensorFlow's own attributes of that kind have 32 bits.
[[nodiscard]] double factor_attribute(Construction* construction, const char* name);
[[nodiscard]] std::vector<std::int64_t> numbers_attribute(Construction* construction, const char* name);
[[nodiscard]] std::vector<std::string> texts_attribute(Construction* construction, const char* name);

/// Throws InvalidArgument for a type that does not travel.
[[nodiscard]] DType dtype_of(DataType type);

/// A tensor whose memory the run keeps until it is done.
struct View {
  DataType type;
  std::vector<std::int64_t> shape;
  std::byte* data = nullptr;
};
/// Throws InvalidArgument.
[[nodiscard]] View input_view(Context* context, int index);
/// Output of that shape, in the memory of the input of the same number if nothing else needs that.
[[nodiscard]] std::byte* output_like(Context* context, int index, const std::vector<std::int64_t>& shape);
/// A new output.
[[nodiscard]] std::byte* output_at(Context* context, int index, DataType type, const std::vector<std::int64_t>& shape,
                                   std::size_t bytes);

}  // namespace ringtune::frameworks::tf
