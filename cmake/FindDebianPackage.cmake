# Folders of packages for users who are not root: scripts/setup fills the first, scripts/gpu-check --prepare the second.
# They are named here because pip and users start CMake without scripts/build.
foreach(FOLDER ${CMAKE_SOURCE_DIR}/.cache/debian/usr ${CMAKE_SOURCE_DIR}/third_party/usr)
  if(EXISTS ${FOLDER})
    message(STATUS "Looking for packages in ${FOLDER} first")
    list(APPEND CMAKE_PREFIX_PATH ${FOLDER})
  endif()
endforeach()
# Debian's folder of libraries. CMake knows it only if the compiler is Debian's.
if(NOT CMAKE_LIBRARY_ARCHITECTURE)
  set(CMAKE_LIBRARY_ARCHITECTURE ${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu)
endif()

# debian_package_is_missing(NAME PACKAGE...): ends with what to install.
function(debian_package_is_missing NAME)
  list(JOIN ARGN " " PACKAGES)
  message(FATAL_ERROR "${NAME} was not found. Run `scripts/setup --build`, which needs no root, or: "
    "apt-get install ${PACKAGES}. On other systems: docs/gpu.md, Building.")
endfunction()

# find_debian_package(NAME PACKAGE...): find_package(NAME REQUIRED), whose failure names the Debian packages to install.
macro(find_debian_package NAME)
  find_package(${NAME} QUIET)
  if(NOT ${NAME}_FOUND)
    debian_package_is_missing(${NAME} ${ARGN})
  endif()
endmacro()
