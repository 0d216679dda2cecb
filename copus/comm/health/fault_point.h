// Points at which tests inject faults into a process: the calls of Health::set_place, in which a rank states where it
// is.
//
// COPUS_FAULT="PLACE@PROCESS#N:KIND" (several are separated by ';') injects a fault into the process with the number
// PROCESS (COPUS_PROCESS, initially the process' rank). The fault happens when this process sets, for the N-th time, a
// place whose text contains PLACE. KIND is KILL, STOP, TERM, INT, PAUSE (stopped for three seconds), or HANG (the
// thread stops, the process stays alive). With COPUS_FAULT_LOG=FILE, all places are appended to the file as "PROCESS
// PLACE".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace copus {

struct Fault {
  enum class Kind { kill, stop, terminate, interrupt, pause, hang };
  std::string place;
  int64_t process = 0;
  int64_t passes = 1;  // the fault happens when the place is set for this many-th time
  Kind kind = Kind::kill;
  bool operator==(const Fault&) const = default;
};

// Throws UserError if the text is not in this form.
std::vector<Fault> parse_faults(std::string_view text);

// Injects a fault into this process if the environment requests one at this place.
void pass_fault_point(std::string_view place);

}  // namespace copus
