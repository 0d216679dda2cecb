#include "copus/model/gpu/emulated_device.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <vector>

namespace copus::gpu::emulated {
namespace {

constexpr size_t stack_bytes = 64 << 10;
constexpr int most_threads = 1024;

enum class State { ready, waits_for_warp, waits_for_block, ended };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  State state;
  Position position;
  // The values of the two latest exchanges. Two are kept because a fast thread must not overwrite a value that a slow
  // thread has yet to read.
  uint64_t exchanged[2];
  int bits[2];
  int exchanges;
};

// Runs one block at a time.
class Block {
 public:
  void run(const Position& position, const std::function<void()>& kernel) {
    kernel_ = &kernel;
    shared_.clear();
    failure_ = nullptr;
    threads_ = position.threads;
    while (static_cast<int>(fibers_.size()) < threads_) make_fiber();
    for (int i = 0; i < threads_; ++i) {
      fibers_[i]->state = State::ready;
      fibers_[i]->position = position;
      fibers_[i]->position.thread = i;
      fibers_[i]->exchanges = 0;
    }
    while (step()) {
    }
  }

  Fiber& current() { return *fibers_[current_]; }
  Fiber& fiber(int thread) { return *fibers_[thread]; }

  void wait(State state) {
    current().state = state;
    swapcontext(&current().context, &scheduler_);
  }

  void* shared(const void* place, size_t bytes) {
    std::vector<char>& memory = shared_[place];
    if (memory.empty()) memory.assign(bytes, static_cast<char>(0xFF));
    return memory.data();
  }

 private:
  void make_fiber() {
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber& fiber = *fibers_.back();
    fiber.stack.reset(new char[stack_bytes]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }

  // The body of a fiber, which executes one thread of each block in turn.
  static void enter();

  // Runs every ready thread, then releases the threads that have met. Returns false when the block has finished.
  bool step() {
    for (int i = 0; i < threads_; ++i) {
      current_ = device().last_thread_first ? threads_ - 1 - i : i;
      if (current().state == State::ready) swapcontext(&scheduler_, &current().context);
      if (failure_ != nullptr) abandon();
    }
    const int warp = device().warp_size;
    bool released = false;
    for (int first = 0; first < threads_; first += warp) {
      released = release(first, std::min(first + warp, threads_), State::waits_for_warp) || released;
    }
    if (released || release(0, threads_, State::waits_for_block)) return true;
    for (int i = 0; i < threads_; ++i) {
      if (fibers_[i]->state == State::ended) continue;
      failure_ = std::make_exception_ptr(InternalError(concat("thread ", i, " of block ", fibers_[i]->position.block,
                                                              " waits for others that have ended or wait elsewhere")));
      abandon();
    }
    return false;
  }

  bool release(int first, int end, State state) {
    for (int i = first; i < end; ++i) {
      if (fibers_[i]->state != state) return false;
    }
    for (int i = first; i < end; ++i) fibers_[i]->state = State::ready;
    return true;
  }

  // Abandons the block's other threads. They never run again; their stacks hold nothing that needs destruction.
  [[noreturn]] void abandon() {
    fibers_.clear();
    std::rethrow_exception(failure_);
  }

  const std::function<void()>* kernel_ = nullptr;
  int threads_ = 0, current_ = 0;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::map<const void*, std::vector<char>> shared_;
  std::exception_ptr failure_;
  ucontext_t scheduler_;
};

Block& block() {
  static Block block;
  return block;
}

void Block::enter() {
  for (;;) {
    try {
      (*block().kernel_)();
    } catch (...) {
      block().failure_ = std::current_exception();
    }
    block().wait(State::ended);
  }
}

}  // namespace

Device& device() {
  static Device device = [] {
    const char* const warp_size = std::getenv("COPUS_EMULATED_WARP");
    Device chosen;
    if (warp_size != nullptr) chosen.warp_size = std::atoi(warp_size);
    chosen.last_thread_first = chosen.warp_size == 64;
    return chosen;
  }();
  return device;
}

const Position& position() { return block().current().position; }

void run(int64_t blocks, int64_t blocks_y, int threads, const std::function<void()>& kernel) {
  // Blocks of a multiple of 64 threads have whole warps on every device. CUDA allows at most 65535 blocks along y.
  COPUS_CHECK(threads > 0 && threads <= most_threads && threads % 64 == 0, threads, " threads");
  COPUS_CHECK(blocks >= 0 && blocks_y > 0 && blocks_y <= 65535, blocks, " x ", blocks_y, " blocks");
  ++device().launches;
  for (int64_t y = 0; y < blocks_y; ++y) {
    for (int64_t x = 0; x < blocks; ++x) block().run({0, threads, x, blocks, y}, kernel);
  }
}

void wait_for_block() { block().wait(State::waits_for_block); }

uint64_t exchange(uint64_t value, int bits) {
  Fiber& self = block().current();
  const int slot = self.exchanges++ % 2, thread = self.position.thread, warp = device().warp_size;
  self.exchanged[slot] = value;
  self.bits[slot] = bits;
  block().wait(State::waits_for_warp);
  COPUS_CHECK(bits > 0 && bits < warp, "a shuffle by ", bits, " in a warp of ", warp);
  Fiber& other = block().fiber(thread ^ bits);
  COPUS_CHECK(other.exchanges - self.exchanges <= 1 && other.exchanges >= self.exchanges && other.bits[slot] == bits,
              "threads ", thread, " and ", thread ^ bits, " are at different shuffles");
  return other.exchanged[slot];
}

void* shared_memory(const void* place, size_t bytes) { return block().shared(place, bytes); }

}  // namespace copus::gpu::emulated
