# copus_room(NAME ... ): declares one room, a static library copus_<NAME> with its tests in one executable.
#
#   SOURCES      the room's .cpp files
#   TESTS        its *_test.cpp files
#   USES         the rooms it depends on (all above it in the root CMakeLists.txt)
#   LIBRARIES    libraries outside the project
#   TORCH        the room uses ATen
include(GoogleTest)

add_library(copus_options INTERFACE)
target_include_directories(copus_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(copus_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror
  # COPUS_CHECK(condition) without a detail is C++20; clang 14 still calls it an extension.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-gnu-zero-variadic-macro-arguments>)
if(COPUS_SANITIZE)
  target_compile_options(copus_options INTERFACE -fsanitize=${COPUS_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(copus_options INTERFACE -fsanitize=${COPUS_SANITIZE})
endif()

function(copus_room)
  cmake_parse_arguments(ROOM "TORCH" "NAME" "SOURCES;TESTS;USES;LIBRARIES" ${ARGN})
  list(TRANSFORM ROOM_USES PREPEND copus_)
  add_library(copus_${ROOM_NAME} STATIC ${ROOM_SOURCES})
  target_link_libraries(copus_${ROOM_NAME} PUBLIC copus_options ${ROOM_USES} ${ROOM_LIBRARIES})
  if(ROOM_TORCH)
    target_link_libraries(copus_${ROOM_NAME} PUBLIC copus_libtorch)
  endif()
  if(ROOM_TESTS)
    add_executable(${ROOM_NAME}_test ${ROOM_TESTS})
    target_link_libraries(${ROOM_NAME}_test PRIVATE copus_${ROOM_NAME} GTest::gtest GTest::gmock GTest::gtest_main)
    # Listed when CTest runs, so that a broken test program fails a test run and never a build. One thread: tests run
    # side by side, and OpenMP threads that outnumber the cores spin; a test about threads sets their number itself.
    gtest_discover_tests(${ROOM_NAME}_test TEST_PREFIX ${ROOM_NAME}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS unit TIMEOUT 300 ENVIRONMENT OMP_NUM_THREADS=1)
  endif()
endfunction()
