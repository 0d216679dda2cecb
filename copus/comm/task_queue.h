// Runs tasks one after another on a thread of its own, which starts with the first of them.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "copus/comm/communicator.h"

namespace copus {

// Used by one thread. Once a task has thrown, those after it throw the same without being run.
class TaskQueue {
 public:
  TaskQueue() = default;
  // Waits for the end of the task under way. Those after it are dropped: whoever still waits for one gets an error.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  Work add(std::function<void()> function);

  bool idle();
  // Returns when all tasks have ended; throws what one of them threw.
  void drain();

 private:
  class Task;
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;  // the first is under way
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace copus
