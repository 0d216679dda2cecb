# copus_room(NAME ... ): declares one room, a static library copus_<NAME> with its tests in one executable.
#
#   SOURCES      the room's .cpp files
#   TESTS        its *_test.cpp files
#   SLOW_TESTS   GoogleTest patterns (Suite.Test) of tests that only `make test-all` runs; their label is `slow` alone
#   USES         the rooms it depends on (all above it in the root CMakeLists.txt)
#   LIBRARIES    libraries outside the project
#   TORCH        the room uses ATen
include(GoogleTest)

add_library(copus_options INTERFACE)
target_include_directories(copus_options INTERFACE ${CMAKE_SOURCE_DIR})
set(HOST_OPTIONS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  # __FILE__ starts at the clone's root. So a program holds no path of the machine that built it, and ccache shares
  # what it compiled between clones and worktrees.
  -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=
  # Sources that are compiled as one look like headers to GCC, which then warns of a pimpl over unnamed types.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>
  # COPUS_CHECK(condition) without a detail is C++20; clang 14 still calls it an extension.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-gnu-zero-variadic-macro-arguments>)
if(COPUS_SANITIZE)
  list(APPEND HOST_OPTIONS -fsanitize=${COPUS_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(copus_options INTERFACE -fsanitize=${COPUS_SANITIZE})
endif()
if(COPUS_FUZZ)
  list(APPEND HOST_OPTIONS -fno-sanitize-recover=all)  # what a sanitizer reports is a finding
endif()
# Device code has options of its own (CopusGpu.cmake).
target_compile_options(copus_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${HOST_OPTIONS}>")

# compile_together(TARGET COUNT): compiles so many sources of one folder as one. Most of what a small source costs are its
# headers and templates. So no two files of a folder may define the same name, even in unnamed namespaces.
option(COPUS_UNITY "Compile several sources of a folder as one" ON)
function(compile_together TARGET COUNT)
  get_target_property(SOURCES ${TARGET} SOURCES)
  list(FILTER SOURCES EXCLUDE REGEX "^/")  # generated ones
  foreach(SOURCE ${SOURCES})
    cmake_path(GET SOURCE PARENT_PATH FOLDER)
    string(MAKE_C_IDENTIFIER "folder_${FOLDER}" FOLDER)
    math(EXPR NUMBER "${NUMBER_OF_${FOLDER}} + 1")
    set(NUMBER_OF_${FOLDER} ${NUMBER})
    math(EXPR BATCH "(${NUMBER} - 1) / ${COUNT}")
    set_source_files_properties(${SOURCE} PROPERTIES UNITY_GROUP "${FOLDER}_${BATCH}")
  endforeach()
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ${COPUS_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()

# discover_room_tests(ROOM LABEL FILTER): the tests of a room's test program that pass GoogleTest's filter.
function(discover_room_tests ROOM LABEL FILTER)
  string(REGEX REPLACE "_torch$" "" PREFIX ${ROOM})  # both parts of a room
  gtest_discover_tests(${ROOM}_test TEST_PREFIX ${PREFIX}. TEST_FILTER "${FILTER}" TEST_LIST ${ROOM}_${LABEL}_tests
    DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${LABEL} TIMEOUT 600 ENVIRONMENT OMP_NUM_THREADS=1)
endfunction()

function(copus_room)
  cmake_parse_arguments(ROOM "TORCH" "NAME" "SOURCES;TESTS;SLOW_TESTS;USES;LIBRARIES" ${ARGN})
  list(TRANSFORM ROOM_USES PREPEND copus_)
  add_library(copus_${ROOM_NAME} STATIC ${ROOM_SOURCES})
  target_link_libraries(copus_${ROOM_NAME} PUBLIC copus_options ${ROOM_USES} ${ROOM_LIBRARIES})
  if(ROOM_TORCH)
    target_link_libraries(copus_${ROOM_NAME} PUBLIC copus_libtorch)
    set_target_properties(copus_${ROOM_NAME} PROPERTIES COPUS_INCLUDES_LIBTORCH ON)
  endif()
  compile_together(copus_${ROOM_NAME} 8)
  if(ROOM_TESTS)
    add_executable(${ROOM_NAME}_test ${ROOM_TESTS})
    compile_together(${ROOM_NAME}_test 8)
    target_link_libraries(${ROOM_NAME}_test PRIVATE copus_${ROOM_NAME} GTest::gtest GTest::gmock GTest::gtest_main)
    # Tested code is compiled as for users. The tests themselves are mostly templates, which are not worth the
    # compiler's time.
    target_compile_options(${ROOM_NAME}_test PRIVATE $<$<CONFIG:Release>:-O0>)
    # Tests are listed when CTest runs, so that a broken test program fails a test run and never a build. They have one
    # thread, since tests run side by side, and OpenMP threads that outnumber the cores spin; a test about threads sets
    # their number itself.
    list(JOIN ROOM_SLOW_TESTS ":" SLOW_TESTS)
    discover_room_tests(${ROOM_NAME} unit "-${SLOW_TESTS}")
    if(SLOW_TESTS)
      discover_room_tests(${ROOM_NAME} slow "${SLOW_TESTS}")
    endif()
  endif()
endfunction()

# copus_torch_part(ROOM room SOURCES ... TESTS ... SLOW_TESTS ... USES ...): the part of a room that needs libtorch,
# where the rest does not, as the library copus_<room>_torch over copus_<room>. In the program without libtorch cli and
# workshop have a without_libtorch.cpp in its place.
function(copus_torch_part)
  cmake_parse_arguments(PART "" "ROOM" "SOURCES;TESTS;SLOW_TESTS;USES" ${ARGN})
  if(COPUS_WITH_TORCH)
    copus_room(NAME ${PART_ROOM}_torch TORCH SOURCES ${PART_SOURCES} TESTS ${PART_TESTS}
      SLOW_TESTS ${PART_SLOW_TESTS} USES ${PART_ROOM} ${PART_USES})
  endif()
endfunction()

# copus_compile_lightly(room): for rooms whose sources are mostly templates and take no time when they run.
function(copus_compile_lightly ROOM)
  foreach(TARGET copus_${ROOM} copus_${ROOM}_torch)
    if(TARGET ${TARGET})
      target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
  endforeach()
endfunction()

# copus_slow_tests(NAME...): leaves tests of this folder to `make test-all`, by the label `slow` beside the one they have.
# For tests that take long and prove at length what others prove quickly.
function(copus_slow_tests)
  foreach(NAME IN LISTS ARGN)
    set_property(TEST ${NAME} APPEND PROPERTY LABELS slow)
  endforeach()
endfunction()

# copus_process_test(NAME FILE [TIMEOUT SECONDS] [RUN_SERIAL] [TORCH]): a Python file that tests the program `copus` as
# a process, as FILE PATH_TO_COPUS. It tests the program without libtorch as well, unless it says TORCH: the sources are
# the same, so beside the other program this is a slow test. It ends with 77 where what it needs is not installed.
function(copus_process_test NAME FILE)
  cmake_parse_arguments(TEST "RUN_SERIAL;TORCH" "TIMEOUT" "" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 1200)  # ends what hangs: machines may be several times slower than ours
  endif()
  function(add_process_test NAME PROGRAM WITH_TORCH)
    add_test(NAME ${NAME} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${FILE} ${PROGRAM})
    set_tests_properties(${NAME} PROPERTIES LABELS process TIMEOUT ${TEST_TIMEOUT} RUN_SERIAL ${TEST_RUN_SERIAL}
      SKIP_RETURN_CODE 77
      ENVIRONMENT "COPUS_WITH_TORCH=${WITH_TORCH};COPUS_WITH_MPI=$<BOOL:${MPI_C_FOUND}>;COPUS_SANITIZE=${COPUS_SANITIZE};PYTHONPATH=${CMAKE_SOURCE_DIR}/copus/cli/testing")
  endfunction()
  set(ALONE $<TARGET_FILE:copus>)
  if(COPUS_WITH_TORCH)
    set(ALONE ${CMAKE_BINARY_DIR}/without_libtorch/copus)
    add_process_test(${NAME} $<TARGET_FILE:copus> 1)
  endif()
  if(NOT TEST_TORCH)
    add_process_test(${NAME}.without_libtorch ${ALONE} 0)
    if(COPUS_WITH_TORCH AND NOT NAME STREQUAL "cli.program")
      copus_slow_tests(${NAME}.without_libtorch)
    endif()
  endif()
endfunction()
