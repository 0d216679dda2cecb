// Runs tasks one after another on a thread of its own, which starts with the first of them.
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

// The queues of all groups of a rank. When a rank has failed, an exception takes this rank out of whatever it does, and
// what other operations still read and write must not be gone before these have ended, as they do soon then.
class OpenQueues {
 public:
  void add(TaskQueue* queue);
  void remove(TaskQueue* queue);
  // Returns when no operation of this rank is under way, after a RankFailure.
  void wait_until_idle();

 private:
  std::mutex mutex_;
  std::set<TaskQueue*> queues_;
};

// Used by one thread. Once a task has thrown, those after it throw the same without being run.
class TaskQueue {
 public:
  // `all`: to which it belongs; null where operations may go on after a failure.
  explicit TaskQueue(std::shared_ptr<OpenQueues> all = nullptr);
  // Waits for the end of the task under way. Those after it are dropped: whoever still waits for one gets an error.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  Work add(std::function<void()> function);

  bool idle();
  void wait_until_idle();
  // Returns when all tasks have ended; throws what one of them threw.
  void drain();

 private:
  class Task;
  void run();

  const std::shared_ptr<OpenQueues> all_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;  // the first is under way
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace copus
