# The tree's headers under the name that users include them by: build/include/quipu -> the folders. Install copies the
# same set.
include(GNUInstallDirs)
set(quipu_public_folders core autograd ops nn)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include/quipu)
foreach(entry IN LISTS quipu_public_folders ITEMS quipu.h)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${entry} ${PROJECT_BINARY_DIR}/include/quipu/${entry} SYMBOLIC)
endforeach()
install(DIRECTORY ${quipu_public_folders} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quipu
        FILES_MATCHING PATTERN "*.h")
install(FILES quipu.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quipu)
