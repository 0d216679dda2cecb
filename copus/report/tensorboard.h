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
  // Starts a new event file in `dir`, which is created if need be. For a resumed run TensorBoard is told to forget the
  // events after `resume_after_step` that earlier files hold. Throws UserError if the file cannot be written.
  explicit TensorBoardWriter(const std::filesystem::path& dir, std::optional<int64_t> resume_after_step = std::nullopt);
  ~TensorBoardWriter();  // flushes; bytes that cannot be written are dropped
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // Adds a point of the curve `tag` ("train/loss"). `wall_time`: seconds since 1970. Buffered: TensorBoard sees it
  // after flush() or once 64 KiB have come together. Throws UserError if that write fails.
  void scalar(std::string_view tag, int64_t step, double value, double wall_time);
  void flush();

 private:
  void add_event(std::string_view event);

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string buffer_;
};

}  // namespace copus
