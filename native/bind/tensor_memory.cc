#include "bind/tensor_memory.h"

#include <cstring>
#include <functional>
#include <optional>

#include "base/error.h"
#include "bind/persistent.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

// CallDetails of the objects that are looked through: no torch since 2.0 has made them smaller.
constexpr std::size_t kTensorWords = 24;   // of c10::TensorImpl, 192 bytes
constexpr std::size_t kStorageWords = 10;  // of c10::StorageImpl

std::uint64_t word_at(std::uint64_t address, std::size_t place) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, reinterpret_cast<const std::byte*>(address) + place * sizeof word, sizeof word);
  return word;
}

std::uint64_t address_of(PyObject* object) noexcept { return reinterpret_cast<std::uintptr_t>(object); }

using Examples = std::vector<TensorMemory::Example>;
using Value = std::function<std::uint64_t(const TensorMemory::Example&)>;

/// The first place at which the objects of all examples hold their value.
std::size_t place_of(const Examples& examples, std::size_t words, const Value& object, const Value& value) {
  for (std::size_t place = 0; place < words; ++place) {
    bool here = true;
    for (const TensorMemory::Example& example : examples) {
      here = here && word_at(object(example), place) == value(example);
    }
    if (here) return place;
  }
  throw InvalidArgument("the tensors of this torch keep what is known of their memory elsewhere");
}

}  // namespace

TensorMemory::TensorMemory(const Examples& examples) {
  if (examples.empty()) throw InvalidArgument("no example of a tensor");
  const auto size = static_cast<std::size_t>(Py_TYPE(examples.front().tensor.ptr())->tp_basicsize);
  const auto object = [](const Example& one) { return address_of(one.tensor.ptr()); };
  const auto implementation = [](const Example& one) { return one.implementation; };
  const auto storage = [](const Example& one) { return one.storage; };
  implementation_ = place_of(examples, size / sizeof(std::uint64_t), object, implementation);
  keys_ = place_of(examples, kTensorWords, implementation, [](const Example& one) { return one.keys; });
  storage_ = place_of(examples, kTensorWords, implementation, storage);
  bytes_ = place_of(examples, kStorageWords, storage, [](const Example& one) { return one.bytes; });
  data_ = place_of(examples, kStorageWords, storage, [](const Example& one) { return one.data; });
  plain_keys_ = examples.front().keys;
}

bool TensorMemory::is_plain(PyObject* tensor) const noexcept {
  const std::uint64_t implementation = word_at(address_of(tensor), implementation_);
  return implementation != 0 && (word_at(implementation, keys_) & ~plain_keys_) == 0;
}

bool TensorMemory::is_whole(PyObject* tensor, const nb::dlpack::dltensor& seen) const noexcept {
  const std::uint64_t storage = word_at(word_at(address_of(tensor), implementation_), storage_);
  if (storage == 0) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(bind::address_of(seen));
  return begin + bytes_of(seen) <= word_at(storage, data_) + word_at(storage, bytes_);
}

}  // namespace ringtune::bind
