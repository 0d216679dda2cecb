# find_debian_package(NAME PACKAGE...): find_package(NAME REQUIRED), whose failure names the Debian packages to install.
macro(find_debian_package NAME)
  find_package(${NAME} QUIET)
  if(NOT ${NAME}_FOUND)
    list(JOIN ARGN " " PACKAGES)
    message(FATAL_ERROR "${NAME} was not found. Run `make setup`, or: apt-get install ${PACKAGES}")
  endif()
endmacro()
