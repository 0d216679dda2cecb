#include "copus/base/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/regular_file.h"
#include "copus/base/text/printable.h"

namespace copus {
namespace {

constexpr int users_mistake = 2;

// From this number of mappings on, small files are copied instead.
constexpr int64_t many_mappings = 16384;
constexpr size_t small_file_bytes = size_t{64} << 10;

std::atomic<int64_t> mappings = 0;

}  // namespace

// What the signal handler knows about a mapping. A handler may take no lock and call hardly any function.
struct WatchedFile {
  static constexpr uintptr_t unused = 0;

  std::atomic<uintptr_t> begin = unused;
  uintptr_t end = 0;
  std::array<char, 256> name{};  // printable; the end of a longer name
};

namespace {

// Entries of the table of mappings (watches) are allocated in blocks, which are never freed. There are enough blocks
// for all mappings that Linux allows.
using WatchBlock = std::array<WatchedFile, 1024>;
std::array<std::atomic<WatchBlock*>, 64> watch_blocks = {};

// The entries that no file uses. Never destroyed, because static files may outlive it.
struct UnusedWatches {
  std::mutex mutex;
  std::vector<WatchedFile*> watches;
  size_t blocks = 0;  // number of allocated blocks
};
UnusedWatches& unused_watches() {
  static auto* const unused = new UnusedWatches;
  return *unused;
}

// Returns the entry of a file, or null if the process has more mappings than Linux allows by default. Without an entry,
// the process dies of a SIGBUS without a message if the file is truncated.
WatchedFile* watch(const std::byte* data, size_t size, const std::string& path) {
  UnusedWatches& unused = unused_watches();
  const std::lock_guard lock(unused.mutex);
  if (unused.watches.empty()) {
    if (unused.blocks == watch_blocks.size()) return nullptr;
    auto block = std::make_unique<WatchBlock>();
    for (WatchedFile& file : *block) unused.watches.push_back(&file);
    watch_blocks[unused.blocks++].store(block.release(), std::memory_order_release);
  }
  WatchedFile& file = *unused.watches.back();
  unused.watches.pop_back();
  const auto begin = reinterpret_cast<uintptr_t>(data);
  file.end = begin + size;
  const std::string name = printable(path);
  const size_t left_out = name.size() - std::min(name.size(), file.name.size() - 1);
  file.name.fill('\0');
  std::ranges::copy(std::string_view(name).substr(left_out), file.name.begin());
  file.begin.store(begin, std::memory_order_release);
  return &file;
}

void forget(WatchedFile* file) {
  if (file == nullptr) return;
  UnusedWatches& unused = unused_watches();
  const std::lock_guard lock(unused.mutex);
  file->begin.store(WatchedFile::unused);
  unused.watches.push_back(file);
}

[[noreturn]] void end_for(const WatchedFile& file) {
  static std::atomic_flag is_told;
  while (is_told.test_and_set()) ::pause();  // another thread prints the message and ends the process
  std::array<char, 512> message;
  char* end = message.data();
  for (const char* part : {"copus: error: ", file.name.data(),
                           ": was cut short while it was being read, or its disk has failed; put the file back, then "
                           "give the command again (a run that had begun: with --resume)\n"}) {
    end = std::copy_n(part, std::strlen(part), end);
  }
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message.data(), end - message.data());
  ::_exit(users_mistake);
}

extern "C" void handle_bus_error(int signal, siginfo_t* information, void* /*context*/) {
  const bool is_fault = information->si_code > 0;  // as opposed to a signal that a process sent
  const auto address = reinterpret_cast<uintptr_t>(information->si_addr);
  for (const std::atomic<WatchBlock*>& entry : watch_blocks) {
    const WatchBlock* const block = entry.load(std::memory_order_acquire);
    if (!is_fault || block == nullptr) break;
    for (const WatchedFile& file : *block) {
      const uintptr_t begin = file.begin.load(std::memory_order_acquire);
      if (begin != WatchedFile::unused && address >= begin && address < file.end) end_for(file);
    }
  }
  // Restores the default action. When the handler returns, the faulting access is repeated and raises the signal again.
  ::signal(signal, SIG_DFL);
  if (!is_fault) ::raise(signal);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  if (mappings >= many_mappings) {
    InputFile file(path);
    if (file.size() <= small_file_bytes) {
      auto copy = std::make_unique<std::byte[]>(file.size());
      const std::span<char> rest(reinterpret_cast<char*>(copy.get()), file.size());
      while (size_ < rest.size()) {
        const size_t count = file.read(rest.subspan(size_));
        if (count == 0) break;  // cut short meanwhile
        size_ += count;
      }
      if (size_ > 0) data_ = copy.get();
      copy_ = std::move(copy);
      return;
    }
  }
  const OpenedFile file = open_regular_file(path, O_RDONLY);
  if (file.descriptor < 0) throw UserError(concat(path, ": cannot be opened: ", file.error));
  struct stat status{};
  const bool is_known = ::fstat(file.descriptor, &status) == 0;
  size_ = static_cast<std::size_t>(status.st_size);
  void* address = nullptr;
  if (is_known && size_ > 0) address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.descriptor, 0);
  const int error = errno;
  ::close(file.descriptor);
  if (!is_known) throw UserError(concat(path, ": cannot be examined: ", std::strerror(error)));
  if (address == MAP_FAILED) {
    const bool are_many = error == ENOMEM && mappings >= many_mappings;
    throw UserError(concat(path, ": cannot be mapped: ", std::strerror(error),
                           are_many ? concat("; this process maps ", mappings.load(),
                                             " files: join files, or raise the limit (sysctl vm.max_map_count)")
                                    : ""));
  }
  data_ = static_cast<const std::byte*>(address);
  if (data_ == nullptr) return;
  watched_ = watch(data_, size_, path_);
  ++mappings;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr || copy_ != nullptr) return;
  forget(watched_);
  ::munmap(const_cast<std::byte*>(data_), size_);
  --mappings;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      copy_(std::move(other.copy_)),
      data_(std::exchange(other.data_, nullptr)),
      watched_(std::exchange(other.watched_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(copy_, other.copy_);
  std::swap(data_, other.data_);
  std::swap(watched_, other.watched_);
  std::swap(size_, other.size_);
  return *this;
}

void tell_of_files_cut_short() {
  struct sigaction action{};
  action.sa_sigaction = handle_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  COPUS_CHECK(::sigaction(SIGBUS, &action, nullptr) == 0);
}

}  // namespace copus
