// Reports limits that leave the program too little memory to start. libtorch initialises its globals before main. If
// there is not enough stack or memory for that, a signal would end the process without a message.
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <exception>
#include <string_view>

namespace {

constexpr int mistake_at_start = 2;
constexpr rlim_t stack_needed = rlim_t{128} << 10;

// Uses only system calls, because no library is initialised yet.
void say(std::string_view text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

void say_number(rlim_t number) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  say({digits.data(), static_cast<size_t>(end - digits.data())});
}

[[noreturn]] void end_before_main() {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  say("copus: error: there is not enough memory to start");
  if (limit.rlim_cur != RLIM_INFINITY) {
    say(": this process may have ");
    say_number(limit.rlim_cur >> 10);
    say(" KiB (ulimit -v), and 1048576 are enough to start; raise that limit");
  }
  say("\n");
  ::_exit(mistake_at_start);
}

// Runs before the initialisers of libraries, including those of sanitizers.
__attribute__((no_sanitize("address", "thread", "undefined"))) void before_libraries() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < stack_needed) {
    say("copus: error: a thread may have ");
    say_number(limit.rlim_cur >> 10);
    say(" KiB of stack (ulimit -s), and ");
    say_number(stack_needed >> 10);
    say(" are needed: raise that limit\n");
    ::_exit(mistake_at_start);
  }
  std::set_terminate(end_before_main);
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const first_of_all)() = before_libraries;

}  // namespace
