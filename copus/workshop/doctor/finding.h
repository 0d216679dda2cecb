// What `copus doctor` has found about one subject.
#pragma once

#include <array>
#include <string>

#include "copus/base/named_values.h"

namespace copus {

enum class Verdict {
  ok,
  warning,  // runs work but are slower, or some kinds of runs do not work
  bad,      // runs fail here
};

template <>
inline constexpr auto named_values<Verdict> =
    std::to_array<NamedValue<Verdict>>({{Verdict::ok, "ok"}, {Verdict::warning, "warning"}, {Verdict::bad, "bad"}});

struct Finding {
  Verdict verdict = Verdict::ok;
  std::string subject;      // "open files"
  std::string text;         // what was found: "a process may have 1024"
  std::string remedy = {};  // what to do; empty if all is well
};

}  // namespace copus
