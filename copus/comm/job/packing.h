// Numbers and texts in a row of bytes, as launchers and ranks send them to each other. What comes from another machine
// may be cut off or no message at all, and so nothing that is read here is believed before its length is checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "copus/comm/job/epoch.h"

namespace copus {

class Packer {
 public:
  void add(int64_t number);  // 8 bytes, the lowest first
  void add(double number);
  void add(std::string_view text);  // after its length
  void add(const FailureReport& report);
  void add(const Epoch& epoch);

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Refers to the bytes. Once something was not there, all that follows is empty or 0.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}

  int64_t number();
  double real();
  std::string text();
  FailureReport report();  // has been announced
  Epoch epoch();

  // What has been read makes no sense.
  void refuse() { cut_off_ = true; }

  bool is_cut_off() const { return cut_off_; }
  // Whether everything was there that was asked for, and nothing else is.
  bool is_whole() const { return !cut_off_ && bytes_.empty(); }

 private:
  // Of things that take at least so many bytes each.
  int64_t count(int64_t least_bytes);
  std::string_view take(int64_t count);

  std::string_view bytes_;
  bool cut_off_ = false;
};

}  // namespace copus
