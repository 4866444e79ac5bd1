// Reading parts into records and writing the merged file: what ringtune/timeline/native_*.py are made of.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "bind/bind.h"
#include "merging/merge_writer.h"
#include "merging/part_reader.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

using ByteArray = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::bytes as_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

using BytesList = nb::typed<nb::list, nb::bytes>;

BytesList listed(const TextCodes& codes) {
  BytesList found;
  for (const std::string& text : codes.texts()) found.append(as_bytes(text));
  return found;
}

using Run = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::uint32_t>;
using Texts = std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<std::string>>;

std::vector<RecordRun> to_runs(const std::vector<Run>& runs) {
  std::vector<RecordRun> found;
  for (const auto& [offset, count, first_row, first_ns, shift_ns, part] : runs) {
    found.push_back({offset, count, first_row, first_ns, shift_ns, part});
  }
  return found;
}

std::vector<PartTexts> to_texts(const std::vector<Texts>& parts) {
  std::vector<PartTexts> found;
  for (const auto& [names, tensors, facts] : parts) found.push_back({names, tensors, facts});
  return found;
}

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
  nb::class_<PartReader>(module, "PartReader")
      .def(nb::init<std::vector<std::string>>(), nb::arg("stages"))
      .def(
          "feed",
          [](PartReader& self, const ByteArray& text) {
            const std::string_view view(reinterpret_cast<const char*>(text.data()), text.size());
            const nb::gil_scoped_release unlocked;
            self.feed(view);
          },
          nb::arg("text"), nb::sig("def feed(self, text: bytes | numpy.typing.NDArray[numpy.uint8]) -> None"))
      .def("finish", &PartReader::finish, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("odd", &PartReader::odd)
      .def_prop_ro("pairs", &PartReader::pairs)
      .def_prop_ro("pending", &PartReader::pending)
      .def("records",
           [](PartReader& self) {
             const std::span<SpanRecord> records = self.records();
             return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(records.data(), {records.size_bytes()},
                                                                      nb::find(&self));
           })
      .def("clear", &PartReader::clear)
      .def_prop_ro("rest", [](const PartReader& self) { return as_bytes(self.rest()); })
      .def_prop_ro("names", [](const PartReader& self) { return listed(self.names()); })
      .def_prop_ro("tensors", [](const PartReader& self) { return listed(self.tensors()); })
      .def_prop_ro("facts", [](const PartReader& self) { return listed(self.facts()); });
  module.def(
      "sort_records",
      [](std::uintptr_t address, std::size_t count) { sort_records({reinterpret_cast<SpanRecord*>(address), count}); },
      nb::arg("address"), nb::arg("count"), nb::call_guard<nb::gil_scoped_release>());
  nb::class_<MergeWriter>(module, "MergeWriter")
      .def(
          "__init__",
          [](MergeWriter* self, std::tuple<int, int, std::int64_t> files, const std::vector<Run>& runs,
             const std::vector<Texts>& parts, std::vector<std::string> stages, std::uint32_t always_paired) {
            const auto [records, target, target_end] = files;
            new (self) MergeWriter({records, target, target_end}, to_runs(runs),
                                   MergedText(to_texts(parts), std::move(stages)),
                                   static_cast<std::uint32_t>(parts.size()), always_paired);
          },
          nb::arg("files"), nb::arg("runs"), nb::arg("parts"), nb::arg("stages"), nb::arg("always_paired"))
      .def(
          "write_some",
          [](MergeWriter& self, unsigned threads) { return with_os_error([&] { return self.write_some(threads); }); },
          nb::arg("threads"))
      .def(
          "write_arrows", [](MergeWriter& self, std::int64_t base) { with_os_error([&] { self.write_arrows(base); }); },
          nb::arg("base"))
      .def_prop_ro("target_end", &MergeWriter::target_end);
}

}  // namespace ringtune::bind
