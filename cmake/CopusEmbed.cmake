# copus_embed(ROOM NAME FILE): builds a text file into a room's library, as the string copus::NAME, which the room
# declares. So pages, styles and scripts are files that editors and linters know.
function(copus_embed ROOM NAME FILE)
  file(READ ${FILE} TEXT)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/embedded_text.cpp.in ${NAME}.cpp @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${FILE})
  target_sources(copus_${ROOM} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.cpp)
endfunction()
