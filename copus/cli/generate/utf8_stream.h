// Decodes bytes that arrive one by one as UTF-8 text.
#pragma once

#include <cstdint>
#include <string>

namespace copus {

// Holds back bytes until they form a whole character. Bytes that are not UTF-8 become U+FFFD, one for each maximal
// subpart of a character (Unicode 15, section 3.9, "U+FFFD substitution of maximal subparts").
class Utf8Stream {
 public:
  // Returns the text that this byte completes, which may be empty.
  std::string add(uint8_t byte);

  // Returns the rest: the replacement of an unfinished character, or nothing.
  std::string finish();

 private:
  std::string begin_character(uint8_t byte);

  std::string pending_;
  int missing_ = 0;     // bytes missing from the character in pending_
  uint8_t low_ = 0x80;  // the range of the next byte
  uint8_t high_ = 0xBF;
};

}  // namespace copus
