// Points at which tests inject faults into a process. The points are the calls of Health::set_place, in which a rank
// states where it is, so a new place is also a new fault point.
//
// COPUS_FAULT="PLACE@PROCESS#N:KIND", several separated by ';': the process with this number (COPUS_PROCESS, initially
// its rank) suffers the fault when it is for the N-th time at a place whose text contains PLACE. KIND is KILL, STOP,
// TERM, INT, PAUSE (stopped for three seconds), or HANG (the thread stops, the process stays alive). With
// COPUS_FAULT_LOG=FILE all places are appended to the file as "PROCESS PLACE".
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
  int64_t passes = 1;  // the pass at which the fault happens
  Kind kind = Kind::kill;
  bool operator==(const Fault&) const = default;
};

// Throws UserError if the text has another form.
std::vector<Fault> parse_faults(std::string_view text);

// Injects a fault into this process if the environment requests it here.
void pass_fault_point(std::string_view place);

}  // namespace copus
