// Loops of compression with error feedback, on memory that Python holds.
#include <cstdint>

#include "bind/bind.h"
#include "device/low_rank_kernels.h"
#include "device/sparse_kernels.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

template <typename T>
T* at(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

void add_compression(nb::module_& module) {
  module.def(
      "pick_largest",
      [](std::uintptr_t error, std::uintptr_t gradient, std::size_t count, std::size_t wanted, std::uintptr_t places,
         std::uintptr_t values) {
        pick_largest({at<float>(error), count}, at<float>(gradient), wanted,
                     {at<std::int32_t>(places), at<float>(values)});
      },
      nb::arg("error"), nb::arg("gradient"), nb::arg("count"), nb::arg("wanted"), nb::arg("places"), nb::arg("values"),
      nb::call_guard<nb::gil_scoped_release>(),
      "Adds a gradient to an error and moves the largest elements out of it.");
  module.def(
      "add_sparse",
      [](std::uintptr_t out, std::size_t count, std::uintptr_t places, std::uintptr_t values, std::size_t some,
         float factor) {
        add_sparse({at<float>(out), count}, at<std::int32_t>(places), {at<float>(values), some}, factor);
      },
      nb::arg("out"), nb::arg("count"), nb::arg("places"), nb::arg("values"), nb::arg("some"), nb::arg("factor"),
      nb::call_guard<nb::gil_scoped_release>(), "Adds elements to a vector at their places.");
  module.def(
      "orthonormalise",
      [](std::uintptr_t vectors, std::size_t rank, std::size_t length) {
        orthonormalise(at<float>(vectors), rank, length);
      },
      nb::arg("vectors"), nb::arg("rank"), nb::arg("length"), nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "apply_low_rank",
      [](std::uintptr_t out, std::uintptr_t error, std::uintptr_t left, std::uintptr_t right, std::size_t rank,
         std::size_t rows, std::size_t columns, float factor) {
        apply_low_rank(at<float>(out), at<float>(error), {at<float>(left), at<float>(right), rank, rows, columns},
                       factor);
      },
      nb::arg("out"), nb::arg("error"), nb::arg("left"), nb::arg("right"), nb::arg("rank"), nb::arg("rows"),
      nb::arg("columns"), nb::arg("factor"), nb::call_guard<nb::gil_scoped_release>(),
      "Writes a product of factors and takes it away from an error (address 0: none).");
}

}  // namespace ringtune::bind
