// Writes that fail for lack of space: full disks, quotas, limits on file size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "copus/base/error.h"

namespace copus {

// A file could not be written.
class WriteError : public UserError {
 public:
  using UserError::UserError;
};

// Describes the errno of a failed write. If space is lacking, the text also gives the size of the file, the free space
// or the limit, and advice: "No space left on device; the file needs 4096 bytes, 100 are free in /data; free some space
// there or choose another folder".
std::string write_error_text(int error_number, uint64_t file_bytes, const std::filesystem::path& path);

// Makes writes beyond a limit on file size (ulimit -f) fail with EFBIG. Otherwise SIGXFSZ would end the process without
// a message.
void report_file_size_limit();

}  // namespace copus
