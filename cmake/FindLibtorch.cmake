# Finds libtorch as the target copus_libtorch: the one given by -DTorch_DIR, else the pip wheel: all of it in .venv
# (`make setup`), or its CPU parts in .cache/libtorch (`make build`). A build of the Python wheel takes that of the
# environment's PyTorch instead.
# Sets COPUS_TORCH_PLATFORM to "cuda", "hip" or "" (CPUs only) and, for CUDA, COPUS_TORCH_CUDA_VERSION. For the Python
# wheel it sets COPUS_PYTORCH_VERSION, which has the local part of the version too ("2.13.0+cpu").
#
# libtorch's own TorchConfig.cmake is not used: that of a CUDA wheel asks for every library that PyTorch itself was
# built with (cuBLAS, cuDNN, ...), none of which Copus calls.
set(OLDEST_TORCH 2.11)

# Sets VERSION to that of the libtorch in a folder with TorchConfig.cmake; to nothing where there is none.
function(get_torch_version FOLDER VERSION)
  set(LINE "")
  if(EXISTS ${FOLDER}/TorchConfigVersion.cmake)
    file(STRINGS ${FOLDER}/TorchConfigVersion.cmake LINE REGEX "PACKAGE_VERSION \"" LIMIT_COUNT 1)
  endif()
  string(REGEX MATCH "[0-9]+\\.[0-9]+(\\.[0-9]+)?" LINE "${LINE}")
  set(${VERSION} "${LINE}" PARENT_SCOPE)
endfunction()

# The wheel's place is looked for each time and not cached: it may be another one when CMake runs again.
if(NOT Torch_DIR AND COPUS_PYTHON)
  # pip hides the environment's packages from builds through variables of Python, which -E ignores.
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -E -P -c
      "import importlib.util; print(*importlib.util.find_spec('torch').submodule_search_locations)"
    OUTPUT_VARIABLE PACKAGE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT PACKAGE)
    message(FATAL_ERROR "COPUS_WITH_TORCH is set, and ${Python3_EXECUTABLE} has no PyTorch to build the trainer for. "
      "First pip install 'torch>=${OLDEST_TORCH}'. If you did, and this is the Python of a build tool's own "
      "environment (uv, build), add --no-build-isolation; or name another libtorch with "
      "-Ccmake.define.Torch_DIR=<folder with TorchConfig.cmake>.")
  endif()
  set(Torch_DIR ${PACKAGE}/share/cmake/Torch)
elseif(NOT Torch_DIR)
  foreach(PACKAGES .venv/lib/python3*/site-packages .cache/libtorch)
    file(GLOB WHEEL_TORCH ${CMAKE_SOURCE_DIR}/${PACKAGES}/torch/share/cmake/Torch)
    foreach(FOLDER IN LISTS WHEEL_TORCH)
      get_torch_version(${FOLDER} TORCH_VERSION)
      if(NOT Torch_DIR AND TORCH_VERSION VERSION_GREATER_EQUAL OLDEST_TORCH)
        set(Torch_DIR ${FOLDER})
      endif()
    endforeach()
  endforeach()
endif()
if(NOT Torch_DIR)
  message(FATAL_ERROR "No libtorch of ${OLDEST_TORCH} or newer was found. Run `make build` (which downloads the pip wheel), "
    "give -DTorch_DIR=<folder with TorchConfig.cmake>, or build the rooms that need none with -DCOPUS_WITH_TORCH=OFF.")
endif()
get_torch_version(${Torch_DIR} TORCH_VERSION)
if(NOT TORCH_VERSION)
  message(FATAL_ERROR "Torch_DIR is ${Torch_DIR}, which holds no TorchConfigVersion.cmake. Give libtorch's "
    "share/cmake/Torch folder, or -UTorch_DIR to take the pip wheel's.")
endif()
if(TORCH_VERSION VERSION_LESS OLDEST_TORCH)
  message(FATAL_ERROR "The libtorch in ${Torch_DIR} is ${TORCH_VERSION}; Copus needs ${OLDEST_TORCH} or newer. Give "
    "another one with -DTorch_DIR=<folder with TorchConfig.cmake>, or -UTorch_DIR to take the pip wheel's.")
endif()
get_filename_component(TORCH_ROOT ${Torch_DIR}/../../.. ABSOLUTE)

set(COPUS_TORCH_PLATFORM "")
if(EXISTS ${TORCH_ROOT}/lib/libtorch_cuda.so)
  set(COPUS_TORCH_PLATFORM cuda)
  # The line reads "cuda: Optional[str] = '13.0'"; libtorch's archives without Python lack the file.
  if(EXISTS ${TORCH_ROOT}/version.py)
    file(STRINGS ${TORCH_ROOT}/version.py COPUS_TORCH_CUDA_VERSION REGEX "^cuda: .* = '")
    string(REGEX MATCH "[0-9]+\\.[0-9]+" COPUS_TORCH_CUDA_VERSION "${COPUS_TORCH_CUDA_VERSION}")
  endif()
elseif(EXISTS ${TORCH_ROOT}/lib/libtorch_hip.so)
  set(COPUS_TORCH_PLATFORM hip)
endif()
if(COPUS_PYTHON)
  set(LINE "")
  if(EXISTS ${TORCH_ROOT}/version.py)
    file(STRINGS ${TORCH_ROOT}/version.py LINE REGEX "^__version__ = '")
  endif()
  if(NOT LINE MATCHES "'(.*)'")
    message(FATAL_ERROR "${TORCH_ROOT} has no version.py: the Python wheel needs a PyTorch, not libtorch alone.")
  endif()
  set(COPUS_PYTORCH_VERSION ${CMAKE_MATCH_1})
endif()
if(COPUS_TORCH_PLATFORM)
  message(STATUS "libtorch: ${TORCH_VERSION} for ${COPUS_TORCH_PLATFORM} ${COPUS_TORCH_CUDA_VERSION} in ${TORCH_ROOT}")
else()
  message(STATUS "libtorch: ${TORCH_VERSION} for CPUs in ${TORCH_ROOT}")
endif()

# OpenMP must be the thread pool that ATen itself uses: a second OpenMP runtime would give every process two pools.
file(GLOB TORCH_OPENMP_LIBRARY ${TORCH_ROOT}/lib/libgomp*.so* ${TORCH_ROOT}/../torch.libs/libgomp*.so*)
if(TORCH_OPENMP_LIBRARY)
  list(GET TORCH_OPENMP_LIBRARY 0 TORCH_OPENMP_LIBRARY)
else()
  find_package(OpenMP REQUIRED)
  set(TORCH_OPENMP_LIBRARY ${OpenMP_gomp_LIBRARY})
endif()

add_library(copus_libtorch INTERFACE)
target_include_directories(copus_libtorch SYSTEM INTERFACE
  ${TORCH_ROOT}/include ${TORCH_ROOT}/include/torch/csrc/api/include)
set(COPUS_LIBTORCH_OPTIONS "" CACHE STRING "More compiler options for the targets whose sources include libtorch")
target_compile_options(copus_libtorch INTERFACE
  "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:$<TARGET_PROPERTY:COPUS_INCLUDES_LIBTORCH>>>:${COPUS_LIBTORCH_OPTIONS}>")
# AT_PER_OPERATOR_HEADERS keeps ATen's headers from including every operator, which takes seconds in each source.
target_compile_definitions(copus_libtorch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 AT_PER_OPERATOR_HEADERS)
# link_libtorch(NAME...): adds lib<NAME>.so of libtorch to copus_libtorch.
function(link_libtorch)
  foreach(LIBRARY IN LISTS ARGN)
    if(NOT EXISTS ${TORCH_ROOT}/lib/lib${LIBRARY}.so)
      message(FATAL_ERROR "The libtorch in ${TORCH_ROOT} lacks lib/lib${LIBRARY}.so. "
        "Copus needs one with shared libraries.")
    endif()
    # The libraries of a device are used through what they register when they are loaded; no code here uses a symbol of
    # theirs. The quotes are for paths with blanks, since CMake takes what begins with a hyphen as it is.
    target_link_libraries(copus_libtorch INTERFACE
      "-Wl,--push-state,--no-as-needed,\"${TORCH_ROOT}/lib/lib${LIBRARY}.so\",--pop-state")
  endforeach()
endfunction()
# Not libtorch.so, which is empty and, in a CUDA wheel, loads CUDA. CopusGpu.cmake adds the libraries of a device.
link_libtorch(torch_cpu c10)
target_link_libraries(copus_libtorch INTERFACE ${TORCH_OPENMP_LIBRARY})
# Where programs look for it; those that are installed have places of their own (apps/copus).
list(PREPEND CMAKE_BUILD_RPATH ${TORCH_ROOT}/lib)
if(COPUS_TORCH_PLATFORM)
  # libtorch finds cuBLAS and its like beside itself when the program starts; the linker need not find them.
  target_link_options(copus_libtorch INTERFACE -Wl,--allow-shlib-undefined)
endif()
