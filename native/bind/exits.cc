// With which SystemExit this process ends. The interpreter has forgotten it when it calls what closes the session. It
// lets go of it when no function runs any more; whoever catches one lets go of it in a function.
#include <unistd.h>

#include "bind/bind.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

destructor free_exit;
PyObject* exit_code;

bool ends_the_script() { return ::gettid() == ::getpid() && PyEval_GetFrame() == nullptr; }

/// In place of what frees a SystemExit, also one of a class that a script has derived from it.
void note_and_free_exit(PyObject* exit) {
  if (exit_code == nullptr && ends_the_script()) {  // those behind the first were caught on the way to it
    PyObject* code = reinterpret_cast<PySystemExitObject*>(exit)->code;
    exit_code = code == nullptr ? Py_None : code;
    Py_INCREF(exit_code);
  }
  free_exit(exit);
}

#if PY_VERSION_HEX < 0x030C0000
using FastFunction = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
FastFunction raise_exit;

/// In place of sys.exit, which before Python 3.12 leaves an exit without an object that would be freed.
PyObject* raise_exit_object(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  raise_exit(module, arguments, count);
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyErr_Restore(type, value, traceback);
  return nullptr;
}

/// Also for scripts that say `from sys import exit`.
void replace_sys_exit() {
  PyObject* function = PySys_GetObject("exit");
  if (function == nullptr || !PyCFunction_Check(function) || PyCFunction_GET_FLAGS(function) != METH_FASTCALL) return;
  PyMethodDef& method = *reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  raise_exit = reinterpret_cast<FastFunction>(reinterpret_cast<void (*)()>(method.ml_meth));
  method.ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&raise_exit_object));
}
#else
void replace_sys_exit() {}
#endif

void watch_exits() {
  if (free_exit != nullptr) return;
  destructor& free = reinterpret_cast<PyTypeObject*>(PyExc_SystemExit)->tp_dealloc;
  free_exit = free;
  free = &note_and_free_exit;
  replace_sys_exit();
}

}  // namespace

void add_exits(nb::module_& module) {
  module.def("watch_exits", &watch_exits, "Notice from now on with which SystemExit the script ends. Idempotent.");
  module.def(
      "exit_code", [] { return nb::borrow(exit_code == nullptr ? Py_None : exit_code); },
      "The code of the SystemExit that has ended the script, None where none has.");
}

}  // namespace ringtune::bind
