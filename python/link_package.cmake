# Links the files of a Python package into a folder that holds its compiled module as well.
file(MAKE_DIRECTORY ${TO})
file(GLOB FILES ${FROM}/*)
foreach(FILE IN LISTS FILES)
  cmake_path(GET FILE FILENAME NAME)
  file(CREATE_LINK ${FILE} ${TO}/${NAME} SYMBOLIC)
endforeach()
