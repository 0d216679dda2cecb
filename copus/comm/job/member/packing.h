// Packs numbers and texts into bytes, which launchers and ranks send to each other. Bytes from another machine may be
// truncated or not be a message at all, so every length is checked before it is used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "copus/comm/job/member/epoch.h"

namespace copus {

class Packer {
 public:
  void add(int64_t number);  // 8 bytes, little-endian
  void add(double number);
  void add(std::string_view text);  // preceded by its length
  void add(const FailureReport& report);
  void add(const Epoch& epoch);

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Keeps a reference to the bytes. After a first missing value, all later values are empty or 0.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}

  int64_t number();
  double real();
  std::string text();
  FailureReport report();  // the result has `announced` set
  Epoch epoch();

  // Marks what has been read as invalid.
  void refuse() { cut_off_ = true; }

  bool is_cut_off() const { return cut_off_; }
  // Whether every requested value was there, and no bytes are left.
  bool is_whole() const { return !cut_off_ && bytes_.empty(); }

 private:
  // Reads the number of items that follow. Invalid if fewer than `least_bytes` are left for each item.
  int64_t count(int64_t least_bytes);
  std::string_view take(int64_t count);

  std::string_view bytes_;
  bool cut_off_ = false;
};

}  // namespace copus
