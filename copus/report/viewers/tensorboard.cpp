#include "copus/report/viewers/tensorboard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"
#include "copus/base/files/write_error.h"
#include "copus/base/process/standard_descriptors.h"
#include "copus/report/viewers/crc32c.h"

namespace copus {
namespace {

constexpr size_t buffer_bytes = size_t{64} << 10;
constexpr std::string_view file_prefix = "events.out.tfevents.";

template <class Value>
void append_little_endian(std::string& out, Value value) {
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The part of Protobuf's wire format (protobuf.dev/programming-guides/encoding) that events need.
enum class WireType : uint64_t { varint = 0, fixed64 = 1, length_delimited = 2, fixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void append_tag(std::string& out, uint64_t field, WireType type) {
  append_varint(out, field << 3 | static_cast<uint64_t>(type));
}

void append_varint_field(std::string& out, uint64_t field, uint64_t value) {
  append_tag(out, field, WireType::varint);
  append_varint(out, value);
}

void append_double_field(std::string& out, uint64_t field, double value) {
  append_tag(out, field, WireType::fixed64);
  append_little_endian(out, value);
}

void append_float_field(std::string& out, uint64_t field, float value) {
  append_tag(out, field, WireType::fixed32);
  append_little_endian(out, value);
}

void append_bytes_field(std::string& out, uint64_t field, std::string_view value) {
  append_tag(out, field, WireType::length_delimited);
  append_varint(out, value.size());
  out.append(value);
}

// The field numbers come from tensorflow's event.proto and summary.proto.
//   Event      { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//                SessionLog session_log = 7; }
//   Summary    { repeated Value value = 1; }    Value { string tag = 1; float simple_value = 2; }
//   SessionLog { SessionStatus status = 1; }    with START = 1
std::string event_header(double wall_time, int64_t step) {
  std::string event;
  append_double_field(event, 1, wall_time);
  append_varint_field(event, 2, static_cast<uint64_t>(step));
  return event;
}

std::string file_version_event(double wall_time) {
  std::string event = event_header(wall_time, 0);
  append_bytes_field(event, 3, "brain.Event:2");
  return event;
}

// Makes TensorBoard discard the events at `step` and later that earlier files hold.
std::string session_start_event(double wall_time, int64_t step) {
  std::string session_log;
  append_varint_field(session_log, 1, 1);
  std::string event = event_header(wall_time, step);
  append_bytes_field(event, 7, session_log);
  return event;
}

std::string scalar_event(std::string_view tag, int64_t step, double value, double wall_time) {
  std::string summary_value;
  append_bytes_field(summary_value, 1, tag);
  append_float_field(summary_value, 2, static_cast<float>(value));
  std::string summary;
  append_bytes_field(summary, 1, summary_value);
  std::string event = event_header(wall_time, step);
  append_bytes_field(event, 5, summary);
  return event;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// Chooses the time, in whole seconds, for the new file's name. TensorBoard reads the files of a directory in the order
// of their names, which start with the second in which they were opened. The new name must sort last, even if an
// earlier file was opened in the same second or the clock was set back since.
int64_t next_file_second(const std::filesystem::path& dir) {
  auto second = static_cast<int64_t>(now());
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(file_prefix)) continue;
    int64_t earlier = 0;
    const auto [end, error] = std::from_chars(name.data() + file_prefix.size(), name.data() + name.size(), earlier);
    if (error == std::errc() && earlier >= second) second = earlier + 1;
  }
  return second;
}

std::string file_name(const std::filesystem::path& dir) {
  std::array<char, HOST_NAME_MAX + 1> host{};
  gethostname(host.data(), host.size() - 1);
  std::array<char, HOST_NAME_MAX + 128> name{};
  std::snprintf(name.data(), name.size(), "%010lld.%s.%d", static_cast<long long>(next_file_second(dir)), host.data(),
                static_cast<int>(getpid()));
  return concat(file_prefix, name.data());
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& dir, std::optional<int64_t> resume_after_step) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) throw UserError(concat(dir.string(), ": cannot be created: ", error.message(), "."));
  path_ = dir / file_name(dir);
  descriptor_ = checked_descriptor(open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (descriptor_ < 0) {
    throw UserError(concat(path_.string(), ": cannot be opened for writing: ", std::strerror(errno), "."));
  }
  add_event(file_version_event(now()));
  if (resume_after_step) add_event(session_start_event(now(), *resume_after_step + 1));
}

TensorBoardWriter::~TensorBoardWriter() {
  try {
    flush();
  } catch (const UserError&) {  // NOLINT(bugprone-empty-catch): a destructor has nobody to tell
  }
  close(descriptor_);
}

void TensorBoardWriter::scalar(std::string_view tag, int64_t step, double value, double wall_time) {
  add_event(scalar_event(tag, step, value, wall_time));
  if (buffer_.size() >= buffer_bytes) flush();
}

// Adds a TFRecord: the length, its checksum, the bytes, their checksum.
void TensorBoardWriter::add_event(std::string_view event) {
  const size_t start = buffer_.size();
  append_little_endian(buffer_, static_cast<uint64_t>(event.size()));
  append_little_endian(buffer_, masked_crc32c(std::string_view(buffer_).substr(start)));
  buffer_.append(event);
  append_little_endian(buffer_, masked_crc32c(event));
}

void TensorBoardWriter::flush() {
  const size_t written = write_all(descriptor_, buffer_);
  if (written < buffer_.size()) {
    const int error = errno;
    buffer_.erase(0, written);
    struct stat status{};
    const uint64_t size = ::fstat(descriptor_, &status) == 0 ? status.st_size : 0;
    throw WriteError(
        concat(path_.string(), ": cannot be written: ", write_error_text(error, size + buffer_.size(), path_)));
  }
  buffer_.clear();
}

}  // namespace copus
