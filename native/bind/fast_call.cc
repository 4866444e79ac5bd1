// A Python function with a short path before it: callable without a frame, otherwise like the function (`__wrapped__`,
// signature and documentation are put on it by functools.update_wrapper).
#include <Python.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <structmember.h>

#include <array>
#include <new>

#include "base/error.h"
#include "bind/bind.h"
#include "bind/fast_path.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

/// A Python function, with the type that the module's stub states for it.
class AnyFunction : public nb::object {
 public:
  using nb::object::object;
  using nb::object::operator=;
  static constexpr auto Name = nb::detail::const_name("collections.abc.Callable[..., typing.Any]");
};

struct FastCall {
  PyObject_HEAD vectorcallfunc call;
  PyObject* attributes;
  PyObject* function;
  PyObject* path;
  PyObject* form;  // null: it is given a handle
};

FastCall& self_of(PyObject* object) noexcept { return *reinterpret_cast<FastCall*>(object); }

/// What `shortly` returns, or what the function behind it does when that is null without an error.
template <typename Shortly>
PyObject* call_with(PyObject* object, PyObject* const* args, std::size_t flagged, PyObject* keywords,
                    Shortly&& shortly) noexcept {
  const FastCall& self = self_of(object);
  try {
    PyObject* const result = shortly(*nb::inst_ptr<FastPath>(self.path));
    if (result != nullptr || PyErr_Occurred() != nullptr) return result;
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  } catch (const Error&) {
    // A name in flight, a runtime that was shut down or has failed: the function meets it again and raises it.
  }
  return PyObject_Vectorcall(self.function, args, flagged, keywords);
}

/// One method of the fast path, for a call with arguments.
using DataPath = PyObject* (FastPath::*)(const CallSignature&, const Arguments&);
template <DataPath data_path>
PyObject* call(PyObject* object, PyObject* const* args, std::size_t flagged, PyObject* keywords) {
  return call_with(object, args, flagged, keywords, [&](FastPath& path) -> PyObject* {
    Arguments found;
    const CallSignature& form = *nb::inst_ptr<CallSignature>(self_of(object).form);
    const auto count = static_cast<std::size_t>(PyVectorcall_NARGS(flagged));
    return form.read(args, count, keywords, found) ? (path.*data_path)(form, found) : nullptr;
  });
}

PyObject* call_synchronize(PyObject* object, PyObject* const* args, std::size_t flagged, PyObject* keywords) {
  return call_with(object, args, flagged, keywords, [&](FastPath& path) -> PyObject* {
    return PyVectorcall_NARGS(flagged) == 1 && keywords == nullptr ? path.synchronize(args[0]) : nullptr;
  });
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  FastCall& self = self_of(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self.attributes);
  Py_VISIT(self.function);
  Py_VISIT(self.path);
  Py_VISIT(self.form);
  return 0;
}

int clear(PyObject* object) {
  FastCall& self = self_of(object);
  Py_CLEAR(self.attributes);
  Py_CLEAR(self.function);
  Py_CLEAR(self.path);
  Py_CLEAR(self.form);
  return 0;
}

void deallocate(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  (void)clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

/// As a class attribute it becomes a method, as a function would.
PyObject* bind_to(PyObject* object, PyObject* instance, PyObject*) {
  if (instance == nullptr || instance == Py_None) return Py_NewRef(object);
  return PyMethod_New(object, instance);
}

PyObject* represent(PyObject* object) { return PyObject_Repr(self_of(object).function); }

/// Pickled by name, as a function is.
PyObject* pickled(PyObject* object, PyObject*) {
  return PyObject_GetAttrString(self_of(object).function, "__qualname__");
}

PyTypeObject* make_type() {
  static std::array<PyMemberDef, 3> members{{
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(FastCall, call), READONLY, nullptr},
      {"__dictoffset__", T_PYSSIZET, offsetof(FastCall, attributes), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  }};
  static std::array<PyMethodDef, 2> methods{{
      {"__reduce__", &pickled, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  }};
  static std::array<PyGetSetDef, 2> properties{{
      {"__dict__", &PyObject_GenericGetDict, &PyObject_GenericSetDict, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  }};
  const auto slot = [](int id, auto* value) { return PyType_Slot{id, reinterpret_cast<void*>(value)}; };
  std::array<PyType_Slot, 11> slots{slot(Py_tp_call, &PyVectorcall_Call),
                                    slot(Py_tp_traverse, &traverse),
                                    slot(Py_tp_clear, &clear),
                                    slot(Py_tp_dealloc, &deallocate),
                                    slot(Py_tp_descr_get, &bind_to),
                                    slot(Py_tp_repr, &represent),
                                    slot(Py_tp_members, members.data()),
                                    slot(Py_tp_methods, methods.data()),
                                    slot(Py_tp_getset, properties.data()),
                                    slot(Py_tp_getattro, &PyObject_GenericGetAttr),
                                    {0, nullptr}};
  PyType_Spec spec{
      "ringtune._native.FastCall", sizeof(FastCall), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
      slots.data()};
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) nb::raise_python_error();
  return reinterpret_cast<PyTypeObject*>(type);
}

AnyFunction make(nb::handle path, nb::handle form, const AnyFunction& function, vectorcallfunc call) {
  static PyTypeObject* const type = make_type();
  auto* const made = PyObject_GC_New(FastCall, type);
  if (made == nullptr) nb::raise_python_error();
  made->call = call;
  made->attributes = nullptr;
  made->function = nb::object(function).release().ptr();
  made->path = nb::borrow(path).release().ptr();
  made->form = nb::borrow(form).release().ptr();
  auto* const object = reinterpret_cast<PyObject*>(made);
  PyObject_GC_Track(object);
  return nb::steal<AnyFunction>(object);
}

}  // namespace

void add_fast_path(nb::module_& module) {
  nb::class_<CallSignature>(module, "CallSignature",
                            "The arguments that a function takes, and what its calls have been.");
  nb::class_<PersistentCollective>(module, "PersistentCollective", "A collective that was called before.");
  nb::class_<PersistentGroup>(module, "PersistentGroup", "A group of allreduces in place that was called before.");
  nb::class_<PendingGroup>(module, "PendingGroup", "A group under way, as ringtune.common.handles.Pending.")
      .def_ro("tickets", &PendingGroup::tickets)
      .def(
          "finish", [](const PendingGroup& group) { return group.tensors; },
          nb::sig("def finish(self) -> list[typing.Any]"));
  nb::class_<PendingResult>(module, "PendingResult", "A call under way, as ringtune.common.handles.Pending.")
      .def_prop_ro("tickets", [](const PendingResult& pending) { return std::vector{pending.ticket}; })
      .def(
          "finish",
          [](const PendingResult& pending) {
            return pending.settler(pending.ticket, pending.output, pending.gathers, pending.given);
          },
          nb::sig("def finish(self) -> typing.Any"));
  using Self = nb::handle_t<FastPath>;
  using OfTensor = std::tuple<nb::object, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;
  using Types = nb::typed<nb::tuple, nb::type_object, nb::ellipsis>;
  using OfSignature = nb::typed<nb::handle, CallSignature>;
  nb::class_<FastPath>(module, "FastPath", "What repeated calls share.")
      .def(nb::new_([](const nb::capsule& exchange, Types types, const std::vector<OfTensor>& examples,
                       std::int64_t slice_ns) {
             std::vector<TensorMemory::Example> known;
             for (const auto& [tensor, implementation, keys, storage, bytes, data] : examples) {
               known.push_back({tensor, implementation, keys, storage, bytes, data});
             }
             return std::make_unique<FastPath>(exchange, std::move(types), TensorMemory(known), slice_ns);
           }),
           nb::arg("exchange"), nb::arg("types"), nb::arg("examples"), nb::arg("slice_ns"))
      .def("form", &FastPath::add_form, nb::arg("names"), nb::arg("defaults"), nb::arg("positional"),
           nb::sig("def form(self, names: tuple[str, ...], defaults: tuple[typing.Any, ...], positional: int)"
                   " -> CallSignature"))
      .def("cache_call", &FastPath::cache_call, nb::arg("form"), nb::arg("name").none(), nb::arg("tensor").none(),
           nb::arg("runtime"), nb::arg("words"), nb::arg("result_factory").none())
      .def("cache_group", &FastPath::cache_group, nb::arg("form"), nb::arg("name"), nb::arg("tensors"),
           nb::arg("runtime"), nb::arg("wires"), nb::arg("hows"), nb::arg("given"), nb::arg("group"))
      .def("cache_persistent", &FastPath::cache_persistent, nb::arg("key"), nb::arg("tensor"), nb::arg("runtime"),
           nb::arg("wire"), nb::arg("how"))
      .def("submit_persistent", &FastPath::submit_persistent, nb::arg("key"), nb::arg("tensor"))
      .def("settle_persistent", &FastPath::settle_persistent, nb::arg("runtime"), nb::arg("tickets"),
           nb::arg("tensors"))
      .def("clear", &FastPath::clear)
      .def("__len__", &FastPath::size)
      .def_prop_ro("pending", &FastPath::pending, nb::sig("def pending(self) -> dict[int, typing.Any]"))
      .def("set_settler", &FastPath::set_settler, nb::arg("function"))
      .def(
          "now",
          [](Self self, OfSignature form, const AnyFunction& function) {
            return make(self, form, function, &call<&FastPath::now>);
          },
          nb::arg("form"), nb::arg("function"))
      .def(
          "submit",
          [](Self self, OfSignature form, const AnyFunction& function) {
            return make(self, form, function, &call<&FastPath::submit>);
          },
          nb::arg("form"), nb::arg("function"))
      .def(
          "submit_group",
          [](Self self, OfSignature form, const AnyFunction& function) {
            return make(self, form, function, &call<&FastPath::submit_group>);
          },
          nb::arg("form"), nb::arg("function"))
      .def(
          "synchronize",
          [](Self self, const AnyFunction& function) {
            nb::inst_ptr<FastPath>(self)->set_waiter(function);
            return make(self, {}, function, &call_synchronize);
          },
          nb::arg("function"));
}

}  // namespace ringtune::bind
