#include "copus/strategy/cluster_description.h"

#include "copus/base/error.h"

namespace copus {

std::string_view to_string(ClockKind clock) {
  switch (clock) {
    case ClockKind::real:
      return "real";
    case ClockKind::wall:
      return "wall";
    case ClockKind::virtual_time:
      return "virtual";
  }
  fail_check("known clock", __FILE__, __LINE__, "");
}

}  // namespace copus
