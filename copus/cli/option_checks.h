// What options may be. CLI11's own checks of positive numbers name the largest double in their messages.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "copus/base/error.h"

namespace copus {

// A whole number, not below `least`.
inline CLI::Validator at_least(int64_t least) {
  const auto complaint = [least](const std::string& text) {
    int64_t value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least) return std::string();
    return concat("expected a whole number of at least ", least, ", got ", text);
  };
  return {complaint, concat("at least ", least)};
}

}  // namespace copus
