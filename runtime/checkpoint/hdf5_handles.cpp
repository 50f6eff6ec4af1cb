// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/hdf5_handles.hpp"

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

std::recursive_mutex& hdf5_mutex() {
  // A file that cannot be closed stays broken inside HDF5, whose own end of the program would then
  // fall over it. All that we open has an owner, so nothing is left for it to do.
  static const bool is_ended_by_us = H5dont_atexit() >= 0;
  static_cast<void>(is_ended_by_us);
  static std::recursive_mutex mutex;
  return mutex;
}

herr_t append_error(unsigned, const H5E_error2_t* error, void* text) {
  std::string& all = *static_cast<std::string*>(text);
  if (!all.empty()) all += " < ";
  all += std::string(error->func_name) + ": " + error->desc;
  return 0;
}

}  // namespace

Hdf5Session::Hdf5Session() : lock_(hdf5_mutex()) {
  H5Eget_auto2(H5E_DEFAULT, &print_, &print_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Session::~Hdf5Session() {
  H5Eset_auto2(H5E_DEFAULT, print_, print_data_);
}

std::string hdf5_error_stack() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, &append_error, &text);
  return text;
}

void throw_hdf5_error(const char* call, const char* where) {
  const std::string stack = hdf5_error_stack();
  throw Hdf5Error(std::string("HDF5 failed in ") + call + " (" + where +
                  "): " + (stack.empty() ? "no reason given" : stack));
}

}  // namespace vsr::runtime
