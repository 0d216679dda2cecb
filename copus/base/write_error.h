// Writes that fail for want of space: full disks, quotas, limits on the size of files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "copus/base/error.h"

namespace copus {

// A file that could not be written.
class WriteError : public UserError {
 public:
  using UserError::UserError;
};

// What errno says of a write, and, where it is a lack of space, how large the file would be and what there is: "No
// space left on device; the file needs 4096 bytes, 100 are free in /data; free some space there or choose another
// folder".
std::string write_error_text(int error_number, uint64_t file_bytes, const std::filesystem::path& path);

// Has writes beyond a limit on the size of files (ulimit -f) fail with EFBIG, as on a full disk. The signal would end
// the process without a word.
void report_file_size_limit();

}  // namespace copus
