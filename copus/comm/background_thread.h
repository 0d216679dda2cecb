// A thread that receives no signals: Ctrl-C and SIGTERM go to the main thread.
#pragma once

#include <pthread.h>

#include <csignal>
#include <functional>
#include <thread>

namespace copus {

inline std::thread background_thread(std::function<void()> body) {
  // A thread inherits its parent's signal mask.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace copus
