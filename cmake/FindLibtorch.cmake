# Finds libtorch as the target copus_libtorch: the one given by -DTorch_DIR, else the pip wheel in the project's .venv.
if(NOT Torch_DIR)
  file(GLOB WHEEL_TORCH ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake/Torch)
  if(WHEEL_TORCH)
    set(Torch_DIR ${WHEEL_TORCH} CACHE PATH "Folder with TorchConfig.cmake")
  endif()
endif()
# TorchConfig of a wheel for CUDA ends the configuration where there is no toolkit, and does not say what to do.
file(GLOB TORCH_VERSION_FILE ${Torch_DIR}/../../../version.py)
if(TORCH_VERSION_FILE)
  file(STRINGS ${TORCH_VERSION_FILE} TORCH_CUDA_VERSION REGEX "^cuda: .* = '")
  if(TORCH_CUDA_VERSION)
    find_package(CUDAToolkit QUIET)
    if(NOT CUDAToolkit_FOUND)
      message(FATAL_ERROR "The libtorch in ${Torch_DIR} is built for CUDA, and no CUDA toolkit was found. Install the "
        "toolkit, or replace the wheel by the one for CPUs: .venv/bin/python -m pip install --force-reinstall "
        "-r scripts/requirements-torch.txt --index-url https://download.pytorch.org/whl/cpu")
    endif()
  endif()
endif()
# TorchConfig warns of static libraries that the wheel does not ship and nobody needs (kineto).
set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
find_package(Torch 2.11 QUIET)
unset(CMAKE_MESSAGE_LOG_LEVEL)
if(NOT Torch_FOUND)
  message(FATAL_ERROR "libtorch >= 2.11 was not found. Run `make setup` (installs the pip wheel into .venv), "
    "give -DTorch_DIR=<folder with TorchConfig.cmake>, or build the rooms that need none with -DCOPUS_WITH_TORCH=OFF.")
endif()

# The thread pool that ATen itself uses: linking a second OpenMP runtime beside it would give every process two pools.
get_filename_component(TORCH_LIB_DIR ${TORCH_LIBRARY} DIRECTORY)
file(GLOB TORCH_OPENMP_LIBRARY ${TORCH_LIB_DIR}/libgomp*.so* ${TORCH_LIB_DIR}/../../torch.libs/libgomp*.so*)
if(TORCH_OPENMP_LIBRARY)
  list(GET TORCH_OPENMP_LIBRARY 0 TORCH_OPENMP_LIBRARY)
else()
  find_package(OpenMP REQUIRED)
  set(TORCH_OPENMP_LIBRARY ${OpenMP_gomp_LIBRARY})
endif()

add_library(copus_libtorch INTERFACE)
target_link_libraries(copus_libtorch INTERFACE ${TORCH_LIBRARIES} ${TORCH_OPENMP_LIBRARY})
target_include_directories(copus_libtorch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
separate_arguments(TORCH_FLAGS UNIX_COMMAND "${TORCH_CXX_FLAGS}")
target_compile_options(copus_libtorch INTERFACE ${TORCH_FLAGS})
