#include "copus/report/logs/line_search.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/files/regular_file.h"

namespace copus {

std::optional<int64_t> number_in(std::string_view line, std::string_view field) {
  const std::string name = concat('"', field, "\":");
  const size_t found = line.find(name);
  if (found == std::string_view::npos) return std::nullopt;
  const size_t begin = line.find_first_not_of(' ', found + name.size());
  if (begin == std::string_view::npos) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(line.data() + begin, line.data() + line.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

LineSearch::LineSearch(std::filesystem::path path) : path_(std::move(path)) {
  const OpenedFile file = open_regular_file(path_, O_RDONLY);
  if (file.descriptor < 0) throw UserError(concat(path_.string(), ": cannot be opened: ", file.error));
  descriptor_ = file.descriptor;
  struct stat status{};
  if (fstat(descriptor_, &status) == 0) size_ = static_cast<uint64_t>(status.st_size);
}

LineSearch::~LineSearch() { close(descriptor_); }

std::optional<LineSearch::Line> LineSearch::line_from(uint64_t offset) {
  std::array<char, size_t{4} << 10> piece;
  // The byte before the offset tells whether a line begins there.
  bool is_inside = offset > 0;
  uint64_t at = is_inside ? offset - 1 : 0;
  Line line{.begin = offset, .text = {}};
  while (at < size_) {
    const ssize_t count = pread(descriptor_, piece.data(), piece.size(), static_cast<off_t>(at));
    if (count < 0) throw UserError(concat(path_.string(), ": cannot be read: ", std::strerror(errno)));
    if (count == 0) break;
    bytes_read_ += static_cast<uint64_t>(count);
    std::string_view rest(piece.data(), static_cast<size_t>(count));
    at += rest.size();
    if (is_inside) {
      const size_t end = rest.find('\n');
      if (end == std::string_view::npos) continue;
      rest.remove_prefix(end + 1);
      line.begin = at - rest.size();
      is_inside = false;
    }
    const size_t end = rest.find('\n');
    line.text += rest.substr(0, end);
    if (end != std::string_view::npos) return line;
    if (line.text.size() > most_text_bytes) {
      throw UserError(concat(path_.string(), ", byte ", line.begin, ": has a line of more than ", most_text_bytes,
                             " bytes; is it the right file?"));
    }
  }
  return std::nullopt;
}

uint64_t LineSearch::first_at_least(int64_t least, const NumberOfLine& number_of) {
  // Every line that begins before `low` has a smaller number than `least`; no line that begins at `high` or later has.
  uint64_t low = 0, high = size_;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    std::optional<Line> line = line_from(middle);
    std::optional<int64_t> number;
    while (line && line->begin < high && !(number = number_of(line->text))) line = line_from(line->end());
    if (line && line->begin < high && *number < least) {
      low = line->end();
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace copus
