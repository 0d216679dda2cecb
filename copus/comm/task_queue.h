// Runs tasks one after another on the queue's own thread, which starts with the first task.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "copus/comm/communicator.h"

namespace copus {

class TaskQueue;

// The queues of all groups of a rank. When another rank fails, an exception unwinds this rank's main thread while
// operations on other threads still use their buffers. The queues keep these buffers alive until the operations have
// ended, which happens soon.
class OpenQueues {
 public:
  void add(TaskQueue* queue);
  void remove(TaskQueue* queue);
  // Waits, after a RankFailure, until no operation of this rank is under way.
  void wait_until_idle();

 private:
  std::mutex mutex_;
  std::set<TaskQueue*> queues_;
};

// Used by one thread. After a task throws, later tasks end with the same exception and do not run.
class TaskQueue {
 public:
  // `all`: the rank's open queues; null if operations may continue after a failure.
  explicit TaskQueue(std::shared_ptr<OpenQueues> all = nullptr);
  // Waits for the end of the current task. Later tasks are dropped; waiting for one of them throws an error.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  Work add(std::function<void()> function);

  bool idle();
  void wait_until_idle();
  // Returns when all tasks have ended. Throws if one of them threw.
  void drain();

 private:
  class Task;
  void run();

  const std::shared_ptr<OpenQueues> all_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;  // the first one is running
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace copus
