#include "copus/base/error.h"

namespace copus {

void fail_check(const char* condition, const char* file, int line, const std::string& detail) {
  throw InternalError(concat(file, ":", line, ": check failed: ", condition, detail.empty() ? "" : ": ", detail));
}

}  // namespace copus
