# The GPU platform that this build is for, chosen by COPUS_GPU, and how sources are compiled for it:
#
#   COPUS_GPU_PLATFORM                   "cuda", "hip", or "" for none
#   copus_gpu_platform                   the platform's runtime library and headers, for host code. Defines
#                                        COPUS_GPU_CUDA=1 or COPUS_GPU_HIP=1. Not there without a platform.
#   copus_gpu_sources(TARGET FILE.cu...) adds device code to TARGET
#
# Device code and all that uses copus_libtorch see COPUS_HAS_GPU (1 or 0) and COPUS_GPU_PLATFORM (a string). The other
# rooms do not, so that they compile to the same for every platform.
set(COPUS_GPU auto CACHE STRING
  "GPUs to build for: auto (what libtorch is for, if the compiler for that is here), off, cuda, hip")
set_property(CACHE COPUS_GPU PROPERTY STRINGS auto off cuda hip)
if(NOT COPUS_GPU MATCHES "^(auto|off|cuda|hip)$")
  message(FATAL_ERROR "COPUS_GPU is '${COPUS_GPU}'; it takes auto, off, cuda or hip.")
endif()

# Finds nvcc and the CUDA runtime that libtorch uses, or explains the failure in MISSING.
macro(find_cuda)
  set(MISSING "")
  if(NOT CUDAToolkit_ROOT AND NOT DEFINED ENV{CUDAToolkit_ROOT} AND DEFINED ENV{CUDA_HOME})
    set(CUDAToolkit_ROOT $ENV{CUDA_HOME})  # which PyTorch's own builds of extensions read
  endif()
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
    set(MISSING "no CUDA toolkit (nvcc) was found")
  elseif(NOT TARGET CUDA::cudart)
    set(MISSING "the CUDA toolkit in ${CUDAToolkit_BIN_DIR} lacks the runtime library (libcudart.so)")
  elseif(COPUS_TORCH_CUDA_VERSION)
    # Different versions would put two CUDA runtimes into one process.
    string(REGEX MATCH "^[0-9]+" LIBTORCH_MAJOR ${COPUS_TORCH_CUDA_VERSION})
    if(NOT LIBTORCH_MAJOR EQUAL CUDAToolkit_VERSION_MAJOR)
      set(MISSING "libtorch is built for CUDA ${COPUS_TORCH_CUDA_VERSION} and the toolkit is ${CUDAToolkit_VERSION}")
    endif()
  endif()
endmacro()

# Finds HIPCC, HIP_INCLUDE_DIR and HIP_RUNTIME_LIBRARY, or explains the failure in MISSING.
macro(find_hip)
  set(MISSING "")
  set(PLACES $ENV{ROCM_PATH} /opt/rocm)
  find_program(HIPCC hipcc HINTS ${PLACES} PATH_SUFFIXES bin)
  find_path(HIP_INCLUDE_DIR hip/hip_runtime_api.h HINTS ${PLACES} PATH_SUFFIXES include)
  find_library(HIP_RUNTIME_LIBRARY amdhip64 HINTS ${PLACES} PATH_SUFFIXES lib)
  if(NOT HIPCC OR NOT HIP_INCLUDE_DIR OR NOT HIP_RUNTIME_LIBRARY)
    set(MISSING "no HIP (hipcc, its headers and libamdhip64.so) was found")
  endif()
endmacro()

# Sets COPUS_CUDNN_INCLUDE_DIRS to the headers with which attention by cuDNN is built (model/kernels/kernels_cudnn.cpp),
# or to nothing. PyTorch's wheels bring cuDNN's beside torch/; those of cudnn-frontend come by `pip install
# nvidia-cudnn-frontend`.
macro(find_cudnn)
  find_path(COPUS_CUDNN_INCLUDE_DIR cudnn_graph_v9.h HINTS ${TORCH_ROOT}/../nvidia/cudnn/include)
  find_path(COPUS_CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${TORCH_ROOT}/../include)
  find_path(COPUS_NVRTC_INCLUDE_DIR nvrtc.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} ${TORCH_ROOT}/../nvidia/cu${CUDAToolkit_VERSION_MAJOR}/include)
  set(MISSING_HEADERS "")
  foreach(HEADER CUDNN CUDNN_FRONTEND NVRTC)
    if(NOT COPUS_${HEADER}_INCLUDE_DIR)
      string(APPEND MISSING_HEADERS " ${HEADER}")
    endif()
  endforeach()
  set(COPUS_CUDNN_INCLUDE_DIRS "")
  if(NOT MISSING_HEADERS)
    set(COPUS_CUDNN_INCLUDE_DIRS ${COPUS_CUDNN_FRONTEND_INCLUDE_DIR} ${COPUS_CUDNN_INCLUDE_DIR}
      ${COPUS_NVRTC_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
    message(STATUS "Attention: by cuDNN on compute capability 9.0")
  else()
    message(STATUS "Attention: ATen's alone, because headers are missing:${MISSING_HEADERS} (docs/gpu.md, Building)")
  endif()
endmacro()

set(COPUS_GPU_PLATFORM "")
if(COPUS_GPU STREQUAL "off")
  set(REASON "COPUS_GPU is off")
elseif(COPUS_GPU STREQUAL "auto" AND NOT COPUS_WITH_TORCH)
  set(REASON "this build is without libtorch")
elseif(COPUS_GPU STREQUAL "auto" AND NOT COPUS_TORCH_PLATFORM)
  set(REASON "this libtorch is for CPUs")
else()
  if(COPUS_GPU STREQUAL "auto")
    set(WANTED ${COPUS_TORCH_PLATFORM})
    set(REASON "this libtorch is for it")
  else()
    set(WANTED ${COPUS_GPU})
    set(REASON "COPUS_GPU is ${COPUS_GPU}")
  endif()
  cmake_language(CALL find_${WANTED})
  if(NOT MISSING)
    set(COPUS_GPU_PLATFORM ${WANTED})
  elseif(COPUS_GPU STREQUAL "auto")
    set(REASON "libtorch is for ${WANTED}, but ${MISSING}")
  else()
    message(FATAL_ERROR "COPUS_GPU is ${COPUS_GPU}, but ${MISSING}. Install what is missing, or build without GPUs: "
      "-DCOPUS_GPU=off.")
  endif()
endif()
if(COPUS_GPU_PLATFORM)
  message(STATUS "GPU: ${COPUS_GPU_PLATFORM}, because ${REASON}")
  # Not in a build for CPUs with a libtorch for GPUs, where they would load gigabytes.
  if(COPUS_WITH_TORCH AND COPUS_GPU_PLATFORM STREQUAL COPUS_TORCH_PLATFORM)
    link_libtorch(torch_${COPUS_GPU_PLATFORM} c10_${COPUS_GPU_PLATFORM})
  endif()
else()
  message(STATUS "GPU: none, because ${REASON}")
endif()

set(GPU_DEFINITIONS COPUS_HAS_GPU=$<BOOL:${COPUS_GPU_PLATFORM}> COPUS_GPU_PLATFORM="${COPUS_GPU_PLATFORM}")
if(COPUS_WITH_TORCH)
  target_compile_definitions(copus_libtorch INTERFACE ${GPU_DEFINITIONS})
endif()

if(COPUS_GPU_PLATFORM STREQUAL "cuda")
  # Machine code for A100 and H100, and code that the driver compiles for later devices.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90 CACHE STRING "What to compile device code for")
  endif()
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE} CACHE FILEPATH "nvcc")
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER} CACHE FILEPATH "nvcc's host compiler")
  # The process has one copy of the runtime: libtorch's.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  enable_language(CUDA)
  # Device code has the same C++ standard as the rest; CMake 3.25.1 does not know that nvcc supports it.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  endif()
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  add_library(copus_gpu_platform INTERFACE)
  target_link_libraries(copus_gpu_platform INTERFACE CUDA::cudart)
  target_compile_definitions(copus_gpu_platform INTERFACE COPUS_GPU_CUDA=1)
  find_cudnn()
elseif(COPUS_GPU_PLATFORM STREQUAL "hip")
  set(COPUS_HIP_ARCHITECTURES gfx90a CACHE STRING "What to compile device code for, e.g. gfx90a;gfx942")
  add_library(copus_gpu_platform INTERFACE)
  target_include_directories(copus_gpu_platform SYSTEM INTERFACE ${HIP_INCLUDE_DIR})
  target_link_libraries(copus_gpu_platform INTERFACE ${HIP_RUNTIME_LIBRARY})
  target_compile_definitions(copus_gpu_platform INTERFACE COPUS_GPU_HIP=1 __HIP_PLATFORM_AMD__=1)
endif()

# copus_gpu_sources(TARGET FILE.cu...): compiles device code, which includes no libtorch and launches by <<<...>>>, for
# the build's platform, and adds it to TARGET with the platform's runtime. One source for both platforms.
function(copus_gpu_sources TARGET)
  if(COPUS_GPU_PLATFORM STREQUAL "cuda")
    # Device code is a library of its own, because it takes none of TARGET's options.
    add_library(${TARGET}_gpu OBJECT ${ARGN})
    target_link_libraries(${TARGET}_gpu PRIVATE copus_options)
    target_compile_definitions(${TARGET}_gpu PRIVATE ${GPU_DEFINITIONS})
    target_compile_options(${TARGET}_gpu PRIVATE
      -Xcompiler=-Wall,-Wextra,-Wshadow,-Wconversion,-Wno-sign-conversion)
    target_sources(${TARGET} PRIVATE $<TARGET_OBJECTS:${TARGET}_gpu>)
  elseif(COPUS_GPU_PLATFORM STREQUAL "hip")
    copus_hip_objects(OBJECTS ${ARGN})
    target_sources(${TARGET} PRIVATE ${OBJECTS})
    add_custom_target(${TARGET}_gpu DEPENDS ${OBJECTS})
  else()
    message(FATAL_ERROR "copus_gpu_sources(${TARGET}) in a build without a GPU platform")
  endif()
  # The platform's headers and definitions are left out, since no host code of a room but comm needs them.
  target_link_libraries(${TARGET} PUBLIC $<LINK_ONLY:copus_gpu_platform>)
endfunction()

# hipcc is called by a command of its own, since CMake's language HIP knows ROCm's layout of folders but not Debian's.
function(copus_hip_objects RESULT)
  set(OPTIMISATION $<IF:$<CONFIG:Debug>,-O0$<SEMICOLON>-g,-O3$<SEMICOLON>-DNDEBUG>)
  list(TRANSFORM COPUS_HIP_ARCHITECTURES PREPEND --offload-arch= OUTPUT_VARIABLE ARCHITECTURES)
  list(TRANSFORM GPU_DEFINITIONS PREPEND -D OUTPUT_VARIABLE DEFINITIONS)
  separate_arguments(FLAGS UNIX_COMMAND "${CMAKE_HIP_FLAGS}")
  set(WARNINGS_ARE_ERRORS $<$<BOOL:${CMAKE_COMPILE_WARNING_AS_ERROR}>:-Werror>)
  set(OBJECTS "")
  foreach(SOURCE IN LISTS ARGN)
    set(OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${SOURCE}.o)
    get_filename_component(FOLDER ${OBJECT} DIRECTORY)
    file(MAKE_DIRECTORY ${FOLDER})
    add_custom_command(
      OUTPUT ${OBJECT}
      COMMAND ${CMAKE_COMMAND} -E env HIP_PLATFORM=amd ${HIPCC} -x hip -std=c++20 ${OPTIMISATION} ${FLAGS} -fPIC
        ${ARCHITECTURES} -I${CMAKE_SOURCE_DIR} ${DEFINITIONS}
        -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
        ${WARNINGS_ARE_ERRORS} -MD -MF ${OBJECT}.d -c ${CMAKE_CURRENT_SOURCE_DIR}/${SOURCE} -o ${OBJECT}
      DEPENDS ${SOURCE}
      DEPFILE ${OBJECT}.d
      COMMENT "Building HIP object ${SOURCE}.o"
      COMMAND_EXPAND_LISTS VERBATIM)
    list(APPEND OBJECTS ${OBJECT})
  endforeach()
  set(${RESULT} ${OBJECTS} PARENT_SCOPE)
endfunction()
