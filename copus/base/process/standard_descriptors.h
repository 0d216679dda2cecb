// Keeps descriptors 0, 1 and 2 open. A daemon, cron or a shell (`>&-`) may start a process with these descriptors
// closed. The kernel then gives them to the next opened files, and text for the standard output would be written into
// such a file.
#pragma once

namespace copus {

// Opens the null device for each of the descriptors 0, 1 and 2 that is closed. Every process calls this before it opens
// any file.
void open_standard_descriptors();

// Checks a newly opened descriptor and returns it. Returns a negative descriptor, of a file that failed to open, as it
// is. Throws InternalError if the descriptor is 0, 1 or 2, because text for the standard output would then be written
// into the file.
int checked_descriptor(int descriptor);

}  // namespace copus
