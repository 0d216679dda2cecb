// Descriptors 0, 1 and 2, which a daemon, cron or a shell (`>&-`) may leave closed. The kernel gives the lowest free
// number to the next opened file, so text for the standard output would be written into that file.
#pragma once

namespace copus {

// Opens the null device for each of the descriptors 0, 1 and 2 that is closed. Every process calls this before it opens
// any file.
void open_standard_descriptors();

// Checks a newly opened descriptor and returns it. A negative one means that the file could not be opened, and is
// returned too. Throws InternalError if the descriptor is 0, 1 or 2, because text for the standard output would then be
// written into the file.
int checked_descriptor(int descriptor);

}  // namespace copus
