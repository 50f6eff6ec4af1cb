// SPDX-License-Identifier: Apache-2.0
// What this host says of itself and of the processes on it, asked for by messages, locks and the
// report on a hanging job.
#pragma once

#include <string>

namespace vsr::comm {

/// Name of this host, or "unknown host" where the system does not tell. Local.
std::string host_name();

/// Field `number` of /proc/PID/stat, counted from 1; for those after the program's name, which may
/// hold anything: 3 is the state ('T': stopped by a signal), 22 the start. Empty where there is no
/// such process on this host. Local.
std::string process_field(long pid, int number);

}  // namespace vsr::comm
