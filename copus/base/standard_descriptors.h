// Descriptors 0, 1 and 2, which a daemon, cron or a shell (`>&-`) may leave closed. The kernel gives the lowest free
// number to the next file that is opened, so whatever is written to the standard output would end up in that file.
#pragma once

namespace copus {

// Opens the null device at each of the numbers 0, 1 and 2 that is closed. Every process calls this before it opens
// anything.
void open_standard_descriptors();

// Returns the descriptor of a file of ours, or a negative number, which means that it could not be opened. Throws
// InternalError if text for the standard output would end up in it.
int checked_descriptor(int descriptor);

}  // namespace copus
