// What options may be, and what they mean.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "copus/base/error.h"
#include "copus/config/run_config.h"

namespace copus {

// A whole number, not below `least`. CLI11's own checks of positive numbers name the largest double in their messages.
inline CLI::Validator at_least(int64_t least) {
  const auto complaint = [least](const std::string& text) {
    int64_t value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least) return std::string();
    return concat("expected a whole number of at least ", least, ", got ", text);
  };
  return {complaint, concat("at least ", least)};
}

// By the name that --precision has let through.
inline Precision precision_of(const std::string& name) {
  for (const Precision precision : {Precision::automatic, Precision::fp32, Precision::bf16}) {
    if (to_string(precision) == name) return precision;
  }
  throw InternalError(concat("no precision is named ", name));
}

}  // namespace copus
