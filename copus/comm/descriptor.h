// A file descriptor of this process, closed by its owner's destructor.
#pragma once

#include <unistd.h>

#include <utility>

#include "copus/base/process/standard_descriptors.h"

namespace copus {

class Descriptor {
 public:
  // Takes ownership; -1: no file. Throws InternalError for the number of a standard stream.
  explicit Descriptor(int number = -1) : number_(checked_descriptor(number)) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (is_open()) ::close(number_);
  }

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

}  // namespace copus
