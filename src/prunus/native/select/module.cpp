#include <nanobind/nanobind.h>
#include "dispatch.h"
namespace nb = nanobind;
NB_MODULE(_select, m) { m.def("level", [] { return prunus::level_name(prunus::chosen_level()); }); }
