#include "bind/persistent.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "bind/convert.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

bool same_word(PyObject* a, PyObject* b) noexcept {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) return PyFloat_AS_DOUBLE(a) == PyFloat_AS_DOUBLE(b);
  return PyLong_CheckExact(a) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

/// A set that was removed and registered anew has another number.
bool is_set(PyObject* process_set, std::uint32_t number) noexcept {
  PyObject* const found = PyObject_GetAttrString(process_set, "process_set_id");
  if (found == nullptr) PyErr_Clear();
  const bool same = found != nullptr && PyLong_CheckExact(found) && PyLong_AsLong(found) == static_cast<long>(number);
  Py_XDECREF(found);
  return same;
}

Submission submission_of(std::string_view wire, const nb::dlpack::dltensor* tensor,
                         const PersistentCollective::CollectiveParams& how, const PersistentCollective::Group& group) {
  const auto& [kind, root, dtype, op, prescale, postscale, process_set, wire_dtype] = how;
  Submission submission;
  Request& request = submission.request;
  request.name = wire;
  request.kind = static_cast<CollectiveKind>(kind);
  request.dtype = to_dtype(dtype);
  request.op = to_reduce_op(op);
  request.root = root;
  request.prescale = prescale;
  request.postscale = postscale;
  request.process_set = process_set;
  request.wire = to_wire(wire_dtype, dtype);
  std::tie(request.group, request.group_size) = group;
  if (tensor == nullptr) {
    request.shape = {0};
  } else {
    request.shape.assign(tensor->shape, tensor->shape + tensor->ndim);
    submission.input = submission.output = address_of(*tensor);
  }
  return submission;
}

}  // namespace

bool contiguous(const nb::dlpack::dltensor& tensor) noexcept {
  if (tensor.strides == nullptr) return true;
  std::int64_t step = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != step) return false;
    step *= tensor.shape[i];
  }
  return true;
}

std::byte* address_of(const nb::dlpack::dltensor& tensor) noexcept {
  return static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

std::size_t bytes_of(const nb::dlpack::dltensor& tensor) noexcept {
  std::size_t bytes = tensor.dtype.bits / 8;
  for (int i = 0; i < tensor.ndim; ++i) bytes *= static_cast<std::size_t>(tensor.shape[i]);
  return bytes;
}

CallSignature::CallSignature(const nb::tuple& names, nb::tuple defaults, std::size_t positional)
    : defaults_(std::move(defaults)), positional_(positional) {
  if (names.size() > kMostArguments || names.size() != defaults_.size() || positional > names.size()) {
    throw InvalidArgument("a form has at most " + std::to_string(kMostArguments) + " arguments, each with a default");
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto name = nb::cast<std::string>(names[i]);
    names_.push_back(nb::steal<nb::str>(PyUnicode_InternFromString(name.c_str())));
    if (name == "tensor" || name == "tensors") tensor_ = i;
    if (name == "name") name_ = i;
    if (name == "process_set") process_set_ = i;
    if (name == "out") out_ = i;
  }
}

void CallSignature::cache_call(const nb::object& name, nb::object entry, std::size_t most) {
  if (known_.size() >= most && !known_.contains(name)) known_.clear();
  known_[name] = std::move(entry);
}

bool CallSignature::read(PyObject* const* args, std::size_t count, PyObject* keywords,
                         Arguments& found) const noexcept {
  if (count > positional_) return false;
  found.fill(nullptr);
  std::copy_n(args, count, found.begin());
  const std::size_t named = keywords == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(keywords));
  for (std::size_t i = 0; i < named; ++i) {
    PyObject* const key = PyTuple_GET_ITEM(keywords, static_cast<Py_ssize_t>(i));
    const auto slot = std::find_if(names_.begin(), names_.end(), [&](const nb::str& one) { return one.ptr() == key; });
    if (slot == names_.end()) return false;
    PyObject*& place = found[static_cast<std::size_t>(slot - names_.begin())];
    if (std::exchange(place, args[count + i]) != nullptr) return false;
  }
  return true;
}

PyObject* CallSignature::process_set(const nb::tuple& given) const noexcept {
  return process_set_ == kNone ? nullptr : PyTuple_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(process_set_));
}

nb::object CallSignature::known(const Arguments& arguments) const noexcept {
  if (tensor_ != kNone && arguments[tensor_] == nullptr) return {};
  PyObject* name = Py_None;
  if (name_ != kNone) {
    name = arguments[name_];
    if (name == nullptr || !PyUnicode_CheckExact(name)) return {};
  }
  return nb::borrow(PyDict_GetItemWithError(known_.ptr(), name));
}

bool CallSignature::alike(const Arguments& arguments, const nb::tuple& given) const noexcept {
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (i == tensor_ || i == name_ || i == out_) continue;
    const auto index = static_cast<Py_ssize_t>(i);
    PyObject* const one = arguments[i] != nullptr ? arguments[i] : PyTuple_GET_ITEM(defaults_.ptr(), index);
    if (!same_word(one, PyTuple_GET_ITEM(given.ptr(), index))) return false;
  }
  return true;
}

PersistentCollective::PersistentCollective(nb::object runtime, std::string_view wire,
                                           const nb::dlpack::dltensor* tensor, const CollectiveParams& how,
                                           nb::tuple given, const Group& group)
    : runtime_(std::move(runtime)), native_(nb::cast<Runtime&>(runtime_)), given_(std::move(given)) {
  if (tensor != nullptr) {
    dtype_ = tensor->dtype;
    shape_.assign(tensor->shape, tensor->shape + tensor->ndim);
  }
  request_ = native_.keep(submission_of(wire, tensor, how, group));
  const Request& request = request_.prepared->request;
  step_token_ = StepWatch::token_of(request.kind, request.process_set, request.name, request_.prepared->count);
}

PersistentCollective::~PersistentCollective() { native_.drop(request_); }

bool PersistentCollective::is_like(const nb::dlpack::dltensor& tensor,
                                   std::span<const std::int64_t> shape) const noexcept {
  return tensor.device.device_type == kOnCpu && tensor.dtype.code == dtype_.code && tensor.dtype.bits == dtype_.bits &&
         tensor.dtype.lanes == dtype_.lanes && static_cast<std::size_t>(tensor.ndim) == shape.size() &&
         std::equal(shape.begin(), shape.end(), tensor.shape) && contiguous(tensor) && tensor.data != nullptr;
}

bool PersistentCollective::fits(const nb::dlpack::dltensor& tensor) const noexcept { return is_like(tensor, shape_); }
bool PersistentCollective::fits_result(const nb::dlpack::dltensor& tensor) const noexcept {
  return is_like(tensor, result_factory_->shape);
}

bool PersistentCollective::fits(const CallSignature& form, const Arguments& arguments) const noexcept {
  if (!form.alike(arguments, given_)) return false;
  const std::uint32_t number = request_.prepared->request.process_set;
  PyObject* const process_set = form.process_set(given_);
  return number == 0 || (process_set != nullptr && is_set(process_set, number));
}

}  // namespace ringtune::bind
