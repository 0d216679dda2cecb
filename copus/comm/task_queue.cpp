#include "copus/comm/task_queue.h"

#include <utility>

#include "copus/base/error.h"
#include "copus/comm/rank_failure.h"

namespace copus {

class TaskQueue::Task : public Work::State {
 public:
  Task(std::function<void()> function, std::shared_ptr<OpenQueues> all)
      : function_(std::move(function)), all_(std::move(all)) {}

  // Runs the task or, if `error` is given, ends it with that error. Returns the error with which the task ended, if
  // any.
  std::exception_ptr run(std::exception_ptr error) {
    if (!error) {
      try {
        function_();
      } catch (...) {
        error = std::current_exception();
      }
    }
    {
      const std::scoped_lock lock(mutex_);
      error_ = error;
      ended_ = true;
    }
    ended_now_.notify_all();
    return error;
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    ended_now_.wait(lock, [&] { return ended_; });
    if (!error_) return;
    lock.unlock();
    try {
      std::rethrow_exception(error_);
    } catch (const RankFailure&) {
      if (all_) all_->wait_until_idle();
      throw;
    }
  }

  bool done() override {
    const std::scoped_lock lock(mutex_);
    return ended_;
  }

 private:
  const std::function<void()> function_;
  const std::shared_ptr<OpenQueues> all_;
  std::mutex mutex_;
  std::condition_variable ended_now_;
  bool ended_ = false;
  std::exception_ptr error_;
};

void OpenQueues::add(TaskQueue* queue) {
  const std::scoped_lock lock(mutex_);
  queues_.insert(queue);
}

void OpenQueues::remove(TaskQueue* queue) {
  const std::scoped_lock lock(mutex_);
  queues_.erase(queue);
}

void OpenQueues::wait_until_idle() {
  const std::scoped_lock lock(mutex_);
  for (TaskQueue* const queue : queues_) queue->wait_until_idle();
}

TaskQueue::TaskQueue(std::shared_ptr<OpenQueues> all) : all_(std::move(all)) {
  if (all_) all_->add(this);
}

TaskQueue::~TaskQueue() {
  if (all_) all_->remove(this);
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (tasks_.empty()) return;
  const auto dropped = std::make_exception_ptr(InternalError("an operation was dropped with its group"));
  for (const std::shared_ptr<Task>& task : tasks_) task->run(error_ ? error_ : dropped);
}

Work TaskQueue::add(std::function<void()> function) {
  auto task = std::make_shared<Task>(std::move(function), all_);
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(task);
  }
  changed_.notify_all();
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  return Work(std::move(task));
}

bool TaskQueue::idle() {
  const std::scoped_lock lock(mutex_);
  return tasks_.empty();
}

void TaskQueue::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty(); });
}

void TaskQueue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty(); });
  if (error_) std::rethrow_exception(error_);
}

void TaskQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    const std::shared_ptr<Task> task = tasks_.front();
    lock.unlock();
    const std::exception_ptr error = task->run(error_);
    lock.lock();
    error_ = error;
    tasks_.pop_front();
    if (tasks_.empty()) changed_.notify_all();
  }
}

}  // namespace copus
