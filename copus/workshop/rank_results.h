// What the ranks of a benchmark, processes of this program, and the process that starts them hand to each other: files
// in memory, of which nothing is left behind however they end.
#pragma once

#include <string>

namespace copus {

class MemoryFile {
 public:
  explicit MemoryFile(const std::string& content = "");
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // By which other processes of the user open it while this one lives.
  std::string path() const;

 private:
  int descriptor_;
};

// What a rank has found out, into the file that it was given for that.
void write_results(const std::string& path, const std::string& text);

}  // namespace copus
