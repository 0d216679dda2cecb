#include "copus/comm/rank_clock.h"

#include <thread>

namespace copus {

using std::chrono::duration;
using std::chrono::steady_clock;

double RealClock::now() { return duration<double>(steady_clock::now() - start_).count(); }

void RealClock::advance_to(double seconds) {
  std::this_thread::sleep_until(start_ + std::chrono::duration_cast<steady_clock::duration>(duration<double>(seconds)));
}

}  // namespace copus
