// Runs a fuzz target where there is no libFuzzer: over the files of a corpus, and over changes of them that are drawn
// with a fixed seed, so that each run is the same.
//
//   fuzz_TARGET [--changes N] FILE_OR_FOLDER...
//
// An input that ends the process, or takes longer than ten seconds, is left in TARGET.finding and named.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <vector>

#include "fuzz_target.h"

// Of the sanitizers' runtime, where the program has one.
// NOLINTNEXTLINE(bugprone-reserved-identifier, readability-identifier-naming): the name is theirs
extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(void (*callback)());

namespace copus {

namespace {

namespace fs = std::filesystem;

constexpr unsigned longest_seconds = 10;
constexpr size_t longest_input = size_t{1} << 16;

// What a handler of signals can see: the input that is under way.
const std::string* current = nullptr;
std::array<char, 4096> finding_path{};

void keep_finding() {
  if (current == nullptr) return;
  const int file = ::open(finding_path.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file >= 0 && ::write(file, current->data(), current->size()) >= 0) ::close(file);
  constexpr std::string_view message = "The input that ended this program is in ";
  const auto write = [](std::string_view text) {
    [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
  };
  write(message);
  write(finding_path.data());
  write("\n");
  current = nullptr;
}

void die(int signal) {
  keep_finding();
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

// A stack of its own, since one that has overflowed has no room for a handler.
void catch_signals() {
  static std::array<char, 1 << 16> space;
  stack_t stack{};
  stack.ss_sp = space.data();
  stack.ss_size = space.size();
  COPUS_CHECK(::sigaltstack(&stack, nullptr) == 0);
  struct sigaction action{};
  action.sa_handler = die;
  action.sa_flags = SA_ONSTACK | SA_RESETHAND;
  for (const int signal : {SIGABRT, SIGALRM, SIGBUS, SIGFPE, SIGILL, SIGSEGV}) ::sigaction(signal, &action, nullptr);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_finding);
}

void run(const std::string& input) {
  current = &input;
  ::alarm(longest_seconds);
  try {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  } catch (...) {
    keep_finding();
    throw;
  }
  current = nullptr;
}

std::vector<std::string> read_inputs(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> inputs;
  for (const fs::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    COPUS_CHECK(file.good(), "cannot read ", path.string());
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// Changes inputs as damage and malice do: bits, bytes, pieces that are lost, doubled or from elsewhere, odd values.
class Changer {
 public:
  explicit Changer(const std::vector<std::string>& seeds) : seeds_(seeds) {}

  std::string change(std::string input) {
    for (uint64_t left = 1 + draw(4); left > 0; --left) change_once(input);
    if (input.size() > longest_input) input.resize(longest_input);
    return input;
  }

 private:
  static constexpr std::array<std::string_view, 26> odd = {"-1",
                                                           "0",
                                                           "1e999",
                                                           "1e-320",
                                                           "9223372036854775807",
                                                           "9223372036854775808",
                                                           "18446744073709551615",
                                                           "-0.0",
                                                           "nan",
                                                           "null",
                                                           "true",
                                                           "{}",
                                                           "[]",
                                                           "[[[[[[[[",
                                                           "\"\"",
                                                           "\"",
                                                           "\xff",
                                                           "\n",
                                                           "..",
                                                           "/",
                                                           "\xc3\xa4",
                                                           "2147483648",
                                                           "0.5",
                                                           ",",
                                                           "=",
                                                           ":"};

  // A number below `limit`, which is small, from the generator's own bits: distributions differ between libraries.
  uint64_t draw(uint64_t limit) { return random_() % limit; }

  // A place within the input, or behind it.
  size_t place(const std::string& input) { return draw(input.size() + 1); }

  static bool is_digit(char character) { return character >= '0' && character <= '9'; }

  void change_once(std::string& input) {
    const size_t at = place(input), length = 1 + draw(16);
    switch (draw(8)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << draw(8)));
        return;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(draw(256));
        return;
      case 2:
        input.insert(at, odd[draw(odd.size())]);
        return;
      case 3:
        if (at < input.size()) input.erase(at, length);
        return;
      case 4:
        input.insert(at, input.substr(place(input), length));
        return;
      case 5: {
        const std::string& other = seeds_[draw(seeds_.size())];
        input.insert(at, other.substr(place(other), 4 * length));
        return;
      }
      case 6:
        input.resize(at);
        return;
      default:
        return replace_number(input, at);
    }
  }

  // Puts something odd in the place of the first number from there on.
  void replace_number(std::string& input, size_t from) {
    const auto begin = std::find_if(input.begin() + static_cast<std::ptrdiff_t>(from), input.end(), is_digit);
    const auto end = std::find_if_not(begin, input.end(), is_digit);
    input.replace(begin, end, odd[draw(odd.size())]);
  }

  const std::vector<std::string>& seeds_;
  std::mt19937_64 random_{20260401};
};

int run_all(const std::vector<std::string>& arguments) {
  int64_t changes = 0;
  std::vector<fs::path> paths;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--changes" && i + 1 < arguments.size()) {
      const std::string& number = arguments[++i];
      std::from_chars(number.data(), number.data() + number.size(), changes);
    } else {
      paths.emplace_back(arguments[i]);
    }
  }
  catch_signals();
  const std::vector<std::string> seeds = read_inputs(paths);
  if (seeds.empty()) throw UserError("usage: fuzz_TARGET [--changes N] FILE_OR_FOLDER...: there are no inputs");
  int64_t inputs = 0;
  const auto run_one = [&](const std::string& input) {
    run(input);
    ++inputs;
  };
  run_one("");
  Changer changer(seeds);
  for (const std::string& seed : seeds) {
    run_one(seed);
    for (int64_t i = 0; i < changes; ++i) run_one(changer.change(seed));
  }
  std::cout << inputs << " inputs without a finding\n";
  return 0;
}

}  // namespace

}  // namespace copus

int main(int argc, char** argv) {
  const std::string finding = std::filesystem::path(argv[0]).filename().string() + ".finding";
  finding.copy(copus::finding_path.data(), copus::finding_path.size() - 1);
  try {
    return copus::run_all({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
