// A text that one process of this program makes readable to other processes without a file on disk. The text disappears
// with the process that made it, however that process ends.
#pragma once

#include <string>

namespace copus {

class MemoryFile {
 public:
  explicit MemoryFile(const std::string& content = "");
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // The path by which other processes of this user on this machine read and write the text while this object exists.
  std::string path() const;

 private:
  int descriptor_;
};

}  // namespace copus
