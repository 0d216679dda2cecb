if(COPUS_PYTHON)
  # pip starts CMake without scripts/build, which would name what was unpacked where only root may install packages.
  list(APPEND CMAKE_PREFIX_PATH ${CMAKE_SOURCE_DIR}/.cache/debian/usr ${CMAKE_SOURCE_DIR}/third_party/usr)
endif()

# debian_package_is_missing(NAME PACKAGE...): ends with what to install.
function(debian_package_is_missing NAME)
  list(JOIN ARGN " " PACKAGES)
  message(FATAL_ERROR "${NAME} was not found. Run `scripts/setup --build`, which needs no root, or: "
    "apt-get install ${PACKAGES}")
endfunction()

# find_debian_package(NAME PACKAGE...): find_package(NAME REQUIRED), whose failure names the Debian packages to install.
macro(find_debian_package NAME)
  find_package(${NAME} QUIET)
  if(NOT ${NAME}_FOUND)
    debian_package_is_missing(${NAME} ${ARGN})
  endif()
endmacro()
