# Finds an MPI library as the target MPI::MPI_C, with MPI_C_FOUND, where there is one. Only its C interface is used,
# which CMake finds with a C compiler; -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON builds without MPI.
enable_language(C)
find_package(MPI QUIET COMPONENTS C)
if(MPI_C_FOUND)
  # The definitions keep mpi.h from including the C++ interface, which MPI 3 removed.
  target_compile_definitions(MPI::MPI_C INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  message(STATUS "MPI: ${MPI_C_LIBRARIES}")
else()
  message(STATUS "MPI: none found; ranks will run on one machine only")
endif()
