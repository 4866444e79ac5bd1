// Writing the merged file: what ringtune/timeline/merging/native_writer.py is made of.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <span>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "bind/bind.h"
#include "merging/merge_writer.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

using ColumnDict = nb::typed<nb::dict, nb::str, nb::object>;
/// Labels of stages; by code of the facts what a thread adds to the track.
using Tracks = std::tuple<std::vector<std::string>, std::vector<std::int32_t>>;
using Texts = std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<std::string>>;

/// A column by its name; all are of the length of the first that was asked for.
class Columns {
 public:
  explicit Columns(const ColumnDict& columns) : columns_(columns) {}

  template <typename Value>
  std::span<const Value> get(const char* name) {
    const auto found = nb::cast<nb::ndarray<const Value, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(columns_[name]);
    if (!counted_) count_ = found.size();
    counted_ = true;
    if (found.size() != count_) throw InvalidArgument(std::string("column ") + name + " has another length");
    return {found.data(), found.size()};
  }
  /// Numbers that choose a text.
  std::span<const std::int32_t> codes(const char* name, const std::vector<std::string>& texts) {
    const auto found = get<std::int32_t>(name);
    for (const std::int32_t code : found) {
      if (code < 0 || static_cast<std::size_t>(code) >= texts.size()) {
        throw InvalidArgument(std::string("column ") + name + " has a code without a text");
      }
    }
    return found;
  }

 private:
  const ColumnDict& columns_;
  std::size_t count_ = 0;
  bool counted_ = false;
};

/// What an OSError says of a file: the caller knows which one it is.
template <typename Call>
auto with_os_error(Call call) {
  try {
    const nb::gil_scoped_release unlocked;
    return call();
  } catch (const std::system_error& error) {
    errno = error.code().value();
  }
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

}  // namespace

void add_merging(nb::module_& module) {
  nb::class_<MergeWriter>(module, "MergeWriter")
      .def(
          "__init__",
          [](MergeWriter* self, std::tuple<int, std::int64_t> target, const ColumnDict& columns, const Texts& texts,
             const Tracks& tracks, std::uint32_t always_paired) {
            const auto& [names, tensors, facts] = texts;
            const auto& [stages, thread_tracks] = tracks;
            Columns of(columns);
            const SpanColumns spans{.begin_ns = of.get<std::int64_t>("begin_ns"),
                                    .end_ns = of.get<std::int64_t>("end_ns"),
                                    .bytes = of.get<std::int64_t>("bytes"),
                                    .batch = of.get<std::int64_t>("batch"),
                                    .step = of.get<std::int64_t>("step"),
                                    .rank = of.get<std::int32_t>("rank"),
                                    .knobs_version = of.get<std::int32_t>("knobs_version"),
                                    .name = of.codes("name", names),
                                    .tensor = of.codes("tensor", tensors),
                                    .facts = of.codes("facts", facts),
                                    .stage = of.get<std::uint8_t>("stage"),
                                    .thread_tracks = thread_tracks};
            for (const std::uint8_t stage : spans.stage) {
              if (stage >= stages.size()) throw InvalidArgument("a span is of a stage without a label");
            }
            const auto [file, end] = target;
            const nb::gil_scoped_release unlocked;
            new (self) MergeWriter({file, end}, spans, MergedText({names, tensors, facts}, stages), always_paired);
          },
          nb::arg("target"), nb::arg("columns"), nb::arg("texts"), nb::arg("tracks"), nb::arg("always_paired"),
          nb::keep_alive<1, 3>())
      .def(
          "write_some",
          [](MergeWriter& self, unsigned threads) { return with_os_error([&] { return self.write_some(threads); }); },
          nb::arg("threads"))
      .def("write_arrows", [](MergeWriter& self) { with_os_error([&] { self.write_arrows(); }); })
      .def_prop_ro("end", &MergeWriter::target_end);
}

}  // namespace ringtune::bind
