// Points at which tests strike a process: every place at which a rank says where it is. So a new place is a new point.
//
// COPUS_FAULT="PLACE@PROCESS#N:KIND", several joined by ';': the process with that number (COPUS_PROCESS, its rank at
// first) is struck as it says for the N-th time that it is at a place whose words contain PLACE. KIND is KILL, STOP,
// TERM, INT, PAUSE (stopped for three seconds), or HANG (the thread goes no further; the process lives). With
// COPUS_FAULT_LOG=FILE all places are appended to the file, as "PROCESS PLACE".
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
  int64_t passes = 1;  // the one at which it strikes
  Kind kind = Kind::kill;
  bool operator==(const Fault&) const = default;
};

// Throws UserError where the text is none such.
std::vector<Fault> parse_faults(std::string_view text);

// Strikes this process where the environment asks for that.
void pass_fault_point(std::string_view place);

}  // namespace copus
