// Finds lines in a file that is sorted by a number, such as a log of steps, without reading all of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace copus {

// The number in the first field of this name in a line of JSON, found without parsing; empty if there is none.
std::optional<int64_t> number_in(std::string_view line, std::string_view field);

class LineSearch {
 public:
  // Returns the number by which a line, given without its line end, is sorted; empty if it has none.
  using NumberOfLine = std::function<std::optional<int64_t>(std::string_view line)>;

  struct Line {
    uint64_t begin = 0;  // in bytes from the beginning of the file
    std::string text;    // without the line end
    uint64_t end() const { return begin + text.size() + 1; }
  };

  // Throws UserError if the file is missing, cannot be read, or is not a regular file.
  explicit LineSearch(std::filesystem::path path);
  ~LineSearch();
  LineSearch(const LineSearch&) = delete;
  LineSearch& operator=(const LineSearch&) = delete;

  uint64_t size() const { return size_; }  // bytes of the file when it was opened
  uint64_t bytes_read() const { return bytes_read_; }

  // The first whole line that begins at byte `offset` of the file or later; empty if there is none.
  std::optional<Line> line_from(uint64_t offset);

  // Returns the beginning of the first line whose number is at least `least`, or the end of the file if there is none.
  // Lines without a number count as part of the previous line. The number of lines that the search reads is logarithmic
  // in the size of the file.
  uint64_t first_at_least(int64_t least, const NumberOfLine& number_of);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace copus
