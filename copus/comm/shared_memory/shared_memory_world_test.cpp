// Tests specific to shared memory: ranks as processes, and the content of the segment.
#include "copus/comm/shared_memory/shared_memory_world.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/shared_memory/shared_segment.h"
#include "copus/comm/testing/test_data.h"
#include "copus/comm/testing/test_stress.h"
#include "copus/comm/world.h"

namespace copus {
namespace {

TEST(Groups, KeepTheirPlaceWhenTheirRanksJoinAgain) {
  const auto segment = std::make_shared<SharedSegment>(SharedSegment::create(2));
  for (int64_t round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto world = join_shared_memory(segment, rank, 2, default_wait_seconds, false);
        int64_t value = rank + round;
        world->everyone().all_reduce(&value, 1, DataType::int64);
        EXPECT_EQ(value, 2 * round + 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// Runs `body` as ranks 0 .. size - 1, each in a process that finds the segment by its descriptor. Returns their exit
// codes.
std::vector<int> run_processes(int64_t size, double wait_seconds, const std::function<int(World&)>& body) {
  const SharedSegment segment = SharedSegment::create(size);
  std::vector<pid_t> processes;
  for (int64_t rank = 0; rank < size; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      int code = 1;
      try {
        auto own = std::make_shared<SharedSegment>(SharedSegment::open(Descriptor(dup(segment.descriptor())), size));
        code = body(*join_shared_memory(own, rank, size, wait_seconds, false));
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(rank), error.what());
      }
      _exit(code);
    }
    processes.push_back(process);
  }
  std::vector<int> codes;
  for (const pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  return codes;
}

TEST(Processes, RandomOperationsGiveWhatTheyShould) {
  const auto codes = run_processes(4, default_wait_seconds, [](World& world) {
    const std::string error = run_random_operations(world, 11, 200);
    if (!error.empty()) std::fprintf(stderr, "%s\n", error.c_str());
    return error.empty() ? 0 : 1;
  });
  EXPECT_EQ(codes, std::vector<int>(4, 0));
}

// Forbids this process to read other processes' memory, as a container may.
bool deny_reading_of_peers() {
  sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = std::size(rules), .filter = rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Gathers large parts many times, and changes this rank's part after each gather. Returns 0 if every element was right.
// This rank's part is on the heap in the first rounds; later it is in `memory`, unless that is null.
int gather_changing_parts(World& world, float* memory = nullptr) {
  const std::vector<int64_t> counts = {40000, 7, 90000};
  const int64_t count = counts[0] + counts[1] + counts[2];
  const int64_t own = counts[static_cast<size_t>(world.rank())];
  std::vector<float> on_heap(static_cast<size_t>(own)), all(static_cast<size_t>(count));
  for (int round = 0; round < 30; ++round) {
    float* const mine = memory != nullptr && round >= 10 ? memory : on_heap.data();
    std::fill_n(mine, own, static_cast<float>(10 * round + world.rank()));
    world.everyone().all_gather(mine, all.data(), counts, DataType::float32);
    size_t at = 0;
    for (size_t member = 0; member < counts.size(); ++member) {
      for (int64_t i = 0; i < counts[member]; ++i) {
        if (all[at++] != static_cast<float>(10 * round) + static_cast<float>(member)) return 2;
      }
    }
  }
  return 0;
}

TEST(Processes, GatherWhatLiesInEachOthersMemory) {
  const auto codes = run_processes(3, default_wait_seconds, [](World& world) { return gather_changing_parts(world); });
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

// One member's part is in memory that only its owner can read, such as some device memory.
TEST(Processes, GatherTheSameWhereSomeMemoryIsItsOwnersAlone) {
  constexpr size_t bytes = 90000 * sizeof(float);
  const Descriptor file(static_cast<int>(syscall(SYS_memfd_secret, 0)));
  if (file.number() < 0 || ftruncate(file.number(), bytes) != 0) GTEST_SKIP() << "this system has no secret memory";
  void* const secret = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  ASSERT_NE(secret, MAP_FAILED);
  const auto codes = run_processes(3, default_wait_seconds, [&](World& world) {
    return gather_changing_parts(world, world.rank() == 2 ? static_cast<float*>(secret) : nullptr);
  });
  munmap(secret, bytes);
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

TEST(Processes, GatherTheSameWhereOneMayNotReadTheOthers) {
  // Without seccomp this call fails too, but with another error.
  const bool has_rules = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr, 0, 0) == -1 && errno == EFAULT;
  if (!has_rules) GTEST_SKIP() << "this system has no seccomp";
  const auto codes = run_processes(3, default_wait_seconds, [](World& world) {
    if (world.rank() == 1 && !deny_reading_of_peers()) return 3;
    return gather_changing_parts(world);
  });
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

TEST(Processes, NameOneThatIsGone) {
  const auto codes = run_processes(3, 0.5, [](World& world) {
    if (world.rank() == 1) return 0;
    try {
      world.everyone().barrier();
    } catch (const RankFailure& failure) {
      return failure.report().rank == 1 ? 7 : 8;
    }
    return 9;
  });
  EXPECT_EQ(codes, (std::vector<int>{7, 0, 7}));
}

// Runs one of three ranks. Rank 2 ends while many operations are under way; the others leave the epoch and join the
// next one without rank 2. Writes a byte to `begun` when everything has been started. Returns 0 on success.
int live_through_a_failure(const std::vector<std::shared_ptr<SharedSegment>>& epochs, int64_t rank, int begun) {
  constexpr int64_t count = int64_t{1} << 18;
  std::vector<std::vector<float>> buffers(12, std::vector<float>(count, 1));
  Work last;
  try {
    const auto world = join_shared_memory(epochs[0], rank, 3, default_wait_seconds, false);
    // Rank 2 omits the last sum, which can therefore never complete.
    for (size_t i = 0; i < (rank == 2 ? 5 : 6); ++i) {
      last = world->everyone().start_all_reduce(buffers[i].data(), count, DataType::float32, Reduction::sum);
    }
    if (rank == 2) {
      for (;;) ::pause();
    }
    // More messages than fit without a receiver, and further ones after them.
    Communicator& pair = world->group({rank, 2});
    for (size_t i = 6; i < buffers.size(); ++i) pair.start_send(buffers[i].data(), count, DataType::float32, 1);
    if (::write(begun, "", 1) != 1) return 6;
    Communicator& others = world->group({1, 0});
    for (int i = 0; i < 6; ++i) others.barrier();
    float received = 0;
    pair.receive(&received, 1, DataType::float32, 1);
    return 2;
  } catch (const RankFailure& failure) {
    if (failure.report().rank != 2) return 3;
  }
  try {
    last.wait();  // ended with an error, or was dropped with one
    return 4;
  } catch (const std::exception&) {
  }
  const auto world = join_shared_memory(epochs[1], rank, 2, default_wait_seconds, false);
  return run_random_operations(*world, 5, 50).empty() ? 0 : 5;
}

TEST(Processes, LeaveAFailedEpochWithEverythingUnderWayAndJoinTheNext) {
  const auto epochs = std::vector{std::make_shared<SharedSegment>(SharedSegment::create(3)),
                                  std::make_shared<SharedSegment>(SharedSegment::create(2))};
  std::array<int, 2> begun{};
  ASSERT_EQ(::pipe(begun.data()), 0);
  std::vector<pid_t> processes;
  for (int64_t rank = 0; rank < 3; ++rank) {
    processes.push_back(fork());
    if (processes.back() == 0) _exit(live_through_a_failure(epochs, rank, begun[1]));
  }
  ::close(begun[1]);
  for (int rank = 0; rank < 2; ++rank) {
    char byte = 0;
    EXPECT_EQ(::read(begun[0], &byte, 1), 1);
  }
  ::close(begun[0]);
  EXPECT_EQ(::kill(processes[2], SIGKILL), 0);
  int status = 0;
  waitpid(processes[2], &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  SharedHealth(epochs[0]->health(), 3, 3).report({2, "", "killed"});
  for (const pid_t process : {processes[0], processes[1]}) {
    waitpid(process, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(Counters, OfRoundsAndRingsWrap) {
  const auto segment = std::make_shared<SharedSegment>(SharedSegment::create(2));
  for (const std::vector<int64_t>& ranks : {std::vector<int64_t>{0, 1}, std::vector<int64_t>{1, 0}}) {
    const GroupArea area = SegmentTable(segment->address()).find_or_add_group(ranks);
    for (int64_t member = 0; member < 2; ++member) {
      for (const uint32_t round : {0xfffffffd, 0xfffffffe}) area.slot(member, round).round.publish(round);
      SharedRing& ring = area.ring(member, 1 - member);
      ring.written.publish(0xfffffff0);
      ring.read.publish(0xfffffff0);
    }
  }
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back(
        [&, rank] { EXPECT_EQ(run_random_operations(*join_shared_memory(segment, rank, 2, 10, false), 5, 150), ""); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Segment, GoesOnWithTheClockOfAnotherOne) {
  const SharedSegment first = SharedSegment::create(2);
  const auto next = std::make_shared<SharedSegment>(SharedSegment::create(1, first.start()));
  EXPECT_EQ(next->start(), first.start());
  const auto world = join_shared_memory(next, 0, 1, default_wait_seconds, false);
  EXPECT_GE(world->clock().now(), 0);
}

TEST(Segment, OpensOnlyWhatIsOne) {
  const SharedSegment segment = SharedSegment::create(3);
  EXPECT_THROW(SharedSegment::open(Descriptor(dup(segment.descriptor())), 4), InternalError);
  EXPECT_THROW(SharedSegment::open(Descriptor(dup(0)), 3), InternalError);
  EXPECT_NE(SharedSegment::open(Descriptor(dup(segment.descriptor())), 3).address(), segment.address());
}

}  // namespace
}  // namespace copus
