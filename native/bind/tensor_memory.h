// Whether the memory of one of torch's tensors holds its values. torch has no C header for that: the DLPack exchange
// gives address and shape alone, also of a lazily negated view or of a storage that has been shrunk.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringtune::bind {

/// Where the objects behind tensors keep dispatch keys and storage. The places are found in examples, by their values,
/// and are the same in all of them, or this cannot be made. Every method needs the interpreter's lock.
class TensorMemory {
 public:
  /// A tensor and what Python says of it: address of its implementation, its dispatch keys; address, bytes and data
  /// address of its storage. The first example is plain: its keys are those that a tensor may have.
  struct Example {
    nanobind::object tensor;
    std::uint64_t implementation;
    std::uint64_t keys;
    std::uint64_t storage;
    std::uint64_t bytes;
    std::uint64_t data;
  };
  /// Throws InvalidArgument where the examples do not agree about the places.
  explicit TensorMemory(const std::vector<Example>& examples);

  /// Whether its values lie as they are in memory of its own. `tensor`: an object of torch's own classes.
  [[nodiscard]] bool is_plain(PyObject* tensor) const noexcept;
  /// Whether the storage of a plain tensor reaches as far as the tensor.
  [[nodiscard]] bool is_whole(PyObject* tensor, const nanobind::dlpack::dltensor& seen) const noexcept;

 private:
  std::size_t implementation_ = 0;  // places in words
  std::size_t keys_ = 0;
  std::size_t storage_ = 0;
  std::size_t bytes_ = 0;
  std::size_t data_ = 0;
  std::uint64_t plain_keys_ = 0;
};

}  // namespace ringtune::bind
