// TensorBoard event files: TFRecord framing around protobuf messages, both written by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace copus {

class TensorBoardWriter {
 public:
  // Starts a new event file in `dir`, and creates `dir` if necessary. For a resumed run, the file makes TensorBoard
  // ignore the events after `resume_after_step` in earlier files. Throws UserError if the file cannot be written.
  explicit TensorBoardWriter(const std::filesystem::path& dir, std::optional<int64_t> resume_after_step = std::nullopt);
  ~TensorBoardWriter();  // flushes; write errors are ignored
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // Adds a point to the curve `tag` ("train/loss"). `wall_time`: seconds since 1970. Points are buffered until flush()
  // or until 64 KiB are collected. Throws UserError if that write fails.
  void scalar(std::string_view tag, int64_t step, double value, double wall_time);
  void flush();

 private:
  void add_event(std::string_view event);

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string buffer_;
};

}  // namespace copus
