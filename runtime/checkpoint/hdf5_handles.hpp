// SPDX-License-Identifier: Apache-2.0
// HDF5 behind owners and checked calls. Private to this folder: the only header that pulls hdf5.h.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>

#include "comm/unique_handle.hpp"

namespace vsr::runtime {

template <herr_t (*Close)(hid_t)>
struct Hdf5Traits {
  using Type = hid_t;
  static Type null() noexcept { return H5I_INVALID_HID; }
  static void close(Type handle) noexcept { Close(handle); }
};
using Hdf5File = comm::UniqueHandle<Hdf5Traits<&H5Fclose>>;
using Hdf5Group = comm::UniqueHandle<Hdf5Traits<&H5Gclose>>;
using Hdf5Dataset = comm::UniqueHandle<Hdf5Traits<&H5Dclose>>;
using Hdf5Attribute = comm::UniqueHandle<Hdf5Traits<&H5Aclose>>;
using Hdf5Space = comm::UniqueHandle<Hdf5Traits<&H5Sclose>>;
using Hdf5Type = comm::UniqueHandle<Hdf5Traits<&H5Tclose>>;
using Hdf5Properties = comm::UniqueHandle<Hdf5Traits<&H5Pclose>>;

/// Every use of HDF5 happens inside one of these: the library is not thread-safe, and prints its
/// errors unless told not to. A caller's own setting of the printing comes back afterwards.
/// Declare it before all handles of the same scope.
class Hdf5Session {
 public:
  Hdf5Session();
  ~Hdf5Session();
  Hdf5Session(const Hdf5Session&) = delete;
  Hdf5Session& operator=(const Hdf5Session&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* print_data_ = nullptr;
};

/// The library's own account of its last failure, outermost call first.
std::string hdf5_error_stack();

[[noreturn]] void throw_hdf5_error(const char* call, const char* where);

/// @throws Hdf5Error with the text of the call and hdf5_error_stack() for a negative `result`
template <typename Result>
Result hdf5_checked(Result result, const char* call, const char* where) {
  if (result < 0) throw_hdf5_error(call, where);
  return result;
}

}  // namespace vsr::runtime

#define VSR_H5_TEXT_OF(x) #x
#define VSR_H5_TEXT(x) VSR_H5_TEXT_OF(x)
/// Value of the HDF5 call, which must not be negative.
#define VSR_H5(call) ::vsr::runtime::hdf5_checked((call), #call, __FILE__ ":" VSR_H5_TEXT(__LINE__))
