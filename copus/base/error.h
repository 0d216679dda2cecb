// The two kinds of failure: the user's mistake (exit code 2) and our own bug (exit code 1).
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace copus {

// A mistake in the user's input: a file, a setting, a size. The message says what is wrong, where, what was expected
// and what to do. main catches it, prints the message without a stack, and exits with code 2.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A broken invariant of our own. main catches it and exits with code 1.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Joins its arguments into one string: concat("needs ", 3, " ranks").
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  ((out << parts), ...);
  return out.str();
}

[[noreturn]] void fail_check(const char* condition, const char* file, int line, const std::string& detail);

}  // namespace copus

// Checks an invariant of our own, in release builds too. The detail is evaluated only if the check fails.
#define COPUS_CHECK(condition, ...)                                                                      \
  do {                                                                                                   \
    if (!(condition)) ::copus::fail_check(#condition, __FILE__, __LINE__, ::copus::concat(__VA_ARGS__)); \
  } while (false)
